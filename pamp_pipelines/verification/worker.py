"""Compare models: ``python -m pamp_pipelines.verification.worker JOB.json``, started by ``parity.forward_parity``.

Hugging Face's logits of all cases come first: Megatron can be used on a CPU only after torch has been adapted to it,
and the reference should come from an untouched torch. One model is in memory at a time.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamp_pipelines.declarations.hf_config import load_hf_config
from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.launchers.disk import run_main
from pamp_pipelines.verification.compare import LOGITS, difference, logits_verdict
from pamp_pipelines.verification.construction import Construction, construction_verdict
from pamp_pipelines.verification.first_layers import first_layers_config, link_weights
from pamp_pipelines.verification.job import CaseResult, ParityCase, ParityJob, ParityResults
from pamp_pipelines.verification.parity import RESULTS

if TYPE_CHECKING:
    from pamp_pipelines.verification.ranks import RankServer


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
    log.write("finished", stage="verify", cases=len(job.cases))
    return 0


@dataclass(frozen=True)
class _Reference:
    """What Hugging Face's model said; its logits wait in a file, since those of all cases may be many.

    tokens: ids of shape (T,). origin: of the tokens. facts: of the model. logits: file with float32 (T, V).
    """

    tokens: Any
    origin: str
    facts: Construction
    logits: Path


def _compare_all(job: ParityJob, log: EventLog) -> list[CaseResult]:
    log.write("started", stage="verify", cases=[case.name for case in job.cases])
    folders = [job.work / f"case{number}" for number in range(len(job.cases))]
    references = []
    for number, case in enumerate(job.cases):
        log.write("progress", stage="verify", case=case.name, side="hf", done=number, all=len(job.cases))
        references.append(_reference(case, folders[number]))
    from pamp_pipelines.verification import megatron_side

    megatron_side.prepare()
    from pamp_pipelines.verification.ranks import RankServer
    from pamp_pipelines.verification.reload import rank_main

    with RankServer(rank_main) as server:
        megatron_side.start(job.work)
        results = []
        for number, case in enumerate(job.cases):
            log.write("progress", stage="verify", case=case.name, side="megatron", done=number, all=len(job.cases))
            checks = _judge(case, references[number], folders[number], server)
            results.append(CaseResult(name=case.name, checks=tuple(checks)))
    return results


def _reference(case: ParityCase, folder: Path) -> _Reference:
    """Run Hugging Face's model."""
    import numpy as np

    from pamp_pipelines.verification import hf_side
    from pamp_pipelines.verification.sample import sample_positions, sample_tokens

    whole = load_hf_config(case.source)
    config = first_layers_config(whole, case.layers)
    tokens, origin = sample_tokens(case.source, int(config["vocab_size"]), sample_positions(config))
    model = hf_side.load_model(case.source, layers=case.layers)
    folder.mkdir()
    np.save(folder / "logits.npy", hf_side.logits_TV(model, tokens))
    facts = _of_whole(hf_side.construction(model), whole)
    return _Reference(tokens, origin, facts, folder / "logits.npy")


def _of_whole(facts: Construction, config: Mapping[str, Any]) -> Construction:
    """A model cut to its first layers, described with the depth that its config.json gives it."""
    return facts.model_copy(update={"layers": int(config["num_hidden_layers"])})


def _judge(case: ParityCase, reference: _Reference, folder: Path, server: RankServer) -> list[CheckResult]:
    """Build Megatron's model from the template, give it the checkpoint's weights and compare."""
    import numpy as np

    from pamp_pipelines.verification import megatron_side
    from pamp_pipelines.verification.reload import Reload, reload

    whole = load_hf_config(case.template)
    config = first_layers_config(whole, case.layers)
    vocabulary = int(config["vocab_size"])
    model = megatron_side.build_model(megatron_side.fp32_job(config, len(reference.tokens), folder))
    built = megatron_side.construction(model, config)
    about = {"layers": built.facts.layers, "tokens": reference.origin, "dtype": "float32"}
    built = built.model_copy(update={"facts": _of_whole(built.facts, whole)})
    checks = [construction_verdict(reference.facts, built)]
    try:
        stored = link_weights(case.checkpoint, folder / "checkpoint", layers=case.layers)
        problems = megatron_side.weight_problems(model, stored, vocabulary)
    except InputError as error:
        problems = [str(error)]
    if problems:
        misfit = f"The weights do not fit Megatron's model: {'; '.join(problems)}"
        return [*checks, _failed(misfit, about), *_reloaded(case, [misfit])]
    megatron_side.load_weights(model, folder / "checkpoint")
    ours_TV = megatron_side.logits_TV(model, reference.tokens, vocabulary)
    theirs_TV = np.load(reference.logits, mmap_mode="r")
    if ours_TV.shape != theirs_TV.shape:
        text = f"Megatron's logits have shape {list(ours_TV.shape)}, HF's {list(theirs_TV.shape)}"
        return [*checks, _failed(text, about)]
    checks.append(logits_verdict(difference(theirs_TV, ours_TV), case.tolerance, about))
    del model, ours_TV
    problems = []
    for number, division in enumerate(case.divisions):
        task = Reload(folder / "checkpoint", folder / f"reloaded{number}", config, division)
        problems += reload(server, task)
        shutil.rmtree(task.target)
    return [*checks, *_reloaded(case, problems)]


def _reloaded(case: ParityCase, problems: list[str]) -> list[CheckResult]:
    from pamp_pipelines.verification.reload import reloaded_verdict

    return [reloaded_verdict(case.divisions, problems)] if case.divisions else []


def _failed(reason: str, about: dict[str, Any]) -> CheckResult:
    return CheckResult(name=LOGITS, passed=False, description=reason, metadata=about)


if __name__ == "__main__":
    run_main(main)
