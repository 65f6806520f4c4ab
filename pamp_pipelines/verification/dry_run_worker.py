"""Build both models of a training job: ``python -m pamp_pipelines.verification.dry_run_worker JOB.json``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pamp_pipelines.declarations.training_config import Parallelism, Precision
from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.disk import run_main
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.verification.dry_run import FACTS
from pamp_pipelines.verification.job import DryRunFacts, DryRunJob

_WITHOUT_CUDA: Mapping[Precision, Precision] = {
    "tf32": "fp32",
    **dict.fromkeys(("fp8_delayed", "fp8_tensorwise", "fp8_blockwise"), "bf16"),
}
"""What a model is built in where there is no CUDA."""


def main(path: Path) -> int:
    """Run the job; returns the exit status."""
    from pamp_pipelines.lake.atomic import write_text

    job = DryRunJob.model_validate_json(path.read_bytes())
    log = EventLog(job.work / "events.jsonl")
    log.write("started", stage="dry-run", name=job.train.name)
    try:
        facts = _facts(job)
    except PampError as error:
        log.write("failed", message=str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    write_text(job.work / FACTS, facts.model_dump_json(indent=2))
    log.write("finished", stage="dry-run")
    return 0


def _facts(job: DryRunJob) -> DryRunFacts:
    import torch

    from pamp_pipelines.verification import hf_side

    hf = hf_side.construction(hf_side.empty_model(job.train.template_dir))
    from pamp_pipelines.verification import megatron_side

    megatron_side.prepare()
    megatron_side.start(job.work)
    with torch.device("meta"):
        model = megatron_side.build_model(_on_one_rank(job.train), empty=True)
    built = megatron_side.construction(model, job.train.hf_config)
    rows = megatron_side.padded_vocabulary(job.train)
    return DryRunFacts(hf=hf.model_dump(), megatron=built.model_copy(update={"padded_vocabulary": rows}).model_dump())


def _on_one_rank(job: TrainJob) -> TrainJob:
    """The same model on one CPU process: no fact but the padding depends on the layout, on fp8 or on TF32."""
    return job.model_copy(
        update={
            "parallelism": Parallelism(distributed_optimizer=False),
            "world_size": 1,
            "global_batch_size": job.micro_batch_size,
            "precision": _WITHOUT_CUDA.get(job.precision, job.precision),
            "state_precision": "fp32",
            "recompute": "none",
        }
    )


if __name__ == "__main__":
    run_main(main)
