"""Compare models: ``python -m pamp_pipelines.verification.worker JOB.json``, started by ``parity.forward_parity``.

Hugging Face's logits of all cases come first: Megatron can be used on a CPU only after torch has been adapted to it,
and the reference should come from an untouched torch. One model is in memory at a time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.verification.job import CaseResult, ParityCase, ParityJob, ParityResults
from pamp_pipelines.verification.parity import RESULTS


def main(path: Path) -> int:
    """Run the job; the exit status is 0 also where the verdict is bad, since a verdict is a result."""
    from pamp_pipelines.lake.atomic import write_text

    job = ParityJob.model_validate_json(path.read_bytes())
    log = EventLog(job.work / "events.jsonl")
    try:
        results = ParityResults(results=tuple(_compare_all(job, log)))
    except PampError as error:
        log.write("failed", message=str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    write_text(job.work / RESULTS, results.model_dump_json(indent=2))
    log.write("finished", cases=len(job.cases))
    return 0


def _compare_all(job: ParityJob, log: EventLog) -> list[CaseResult]:
    log.write("started", cases=[case.name for case in job.cases])
    references = [_reference(job, number, case, log) for number, case in enumerate(job.cases)]
    from pamp_pipelines.verification import megatron_side

    megatron_side.start(job.work)
    results = []
    for number, (case, reference) in enumerate(zip(job.cases, references, strict=True)):
        log.write("progress", case=case.name, side="megatron", done=number, all=len(job.cases))
        results.append(CaseResult(name=case.name, checks=tuple(_judge(job, number, case, reference))))
    return results


def _folder(job: ParityJob, number: int) -> Path:
    return job.work / f"case{number}"


def _reference(job: ParityJob, number: int, case: ParityCase, log: EventLog) -> dict[str, Any]:
    """Run Hugging Face's model: tokens and logits go to files, facts are returned."""
    import numpy as np

    from pamp_pipelines.declarations.hf_config import load_hf_config
    from pamp_pipelines.verification import hf_side
    from pamp_pipelines.verification.first_layers import first_layers_config
    from pamp_pipelines.verification.sample import sample_positions, sample_tokens

    log.write("progress", case=case.name, side="hf", done=number, all=len(job.cases))
    config = first_layers_config(load_hf_config(case.source), case.layers)
    tokens, origin = sample_tokens(case.source, int(config["vocab_size"]), sample_positions(config))
    model = hf_side.load_model(case.source, layers=case.layers)
    folder = _folder(job, number)
    folder.mkdir()
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "logits.npy", hf_side.logits_TV(model, tokens))
    return {"construction": hf_side.construction(model), "tokens": origin}


def _judge(job: ParityJob, number: int, case: ParityCase, reference: dict[str, Any]) -> list[CheckResult]:
    import numpy as np

    from pamp_pipelines.declarations.hf_config import load_hf_config
    from pamp_pipelines.verification import megatron_side
    from pamp_pipelines.verification.compare import LOGITS, difference, logits_verdict
    from pamp_pipelines.verification.construction import construction_verdict
    from pamp_pipelines.verification.first_layers import first_layers_config, link_weights

    folder = _folder(job, number)
    tokens = np.load(folder / "tokens.npy")
    config = first_layers_config(load_hf_config(case.template), case.layers)
    model = megatron_side.build_model(megatron_side.fp32_job(config, len(tokens), folder))
    built = megatron_side.construction(model, config)
    checks = [construction_verdict(reference["construction"], built)]
    about = {"layers": built.facts.layers, "tokens": reference["tokens"], "dtype": "float32"}
    try:
        stored = link_weights(case.checkpoint, folder / "checkpoint", layers=case.layers)
        problems = megatron_side.weight_problems(model, stored, int(config["vocab_size"]))
    except InputError as error:
        problems = [str(error)]
    if problems:
        text = "The weights do not fit Megatron's model: " + "; ".join(problems)
        return [*checks, CheckResult(name=LOGITS, passed=False, description=text, metadata=about)]
    megatron_side.load_weights(model, folder / "checkpoint")
    ours = megatron_side.logits_TV(model, tokens, int(config["vocab_size"]))
    theirs = np.load(folder / "logits.npy", mmap_mode="r")
    if ours.shape != theirs.shape:
        text = f"Megatron's logits have shape {list(ours.shape)}, HF's {list(theirs.shape)}"
        return [*checks, CheckResult(name=LOGITS, passed=False, description=text, metadata=about)]
    return [*checks, logits_verdict(difference(theirs, ours), case.tolerance, about)]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
