"""Training that begins only where Megatron's model is the imported one: the gate before a run's first step."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from pamp_pipelines.lake.artifact import Artifact, find
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import Event, OnEvent, event, ignore
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.training.job import Reference, TrainJob
from pamp_pipelines.training.run import train
from pamp_pipelines.training.saved import Saved
from pamp_pipelines.training.windows import HeldOutWindows
from pamp_pipelines.verification.job import Losses, LossJob, LossWork, Split
from pamp_pipelines.verification.loss import LOSSES, TOLERANCE, WORKER
from pamp_pipelines.verification.process import run, scratch

REFERENCE = "reference.json"
"""In a version directory: Hugging Face's losses, so that a run that is started again need not compute them again."""


def train_and_verify(job: TrainJob, on_event: OnEvent = ignore) -> Artifact:
    """`training.run.train`, which for imported weights first has to show Hugging Face's loss on the held-out text.

    Raises:
        InputError, WorkerFailed: as `train`; an `InputError` too where the losses differ, before any step.
    """
    return train(with_reference(job, on_event), on_event)


def with_reference(job: TrainJob, on_event: OnEvent = ignore) -> TrainJob:
    """The job with the losses that its validation at step 0 is compared with; unchanged where there is nothing to do.

    Args:
        job: of a run that may have been begun.
        on_event: gets the progress of the computation, and a warning where the comparison is impossible.

    Raises:
        WorkerFailed: Hugging Face could not load or run the model.
    """
    if not _begins_from_import(job):
        return job
    if job.precision == "fp8_delayed":
        return _not_compared(job, on_event, "delayed fp8 has no scaling factors before the first steps")
    if job.source is None or not job.source.is_dir():
        return _not_compared(job, on_event, f"the imported Hugging Face model is gone: {job.source}")
    reference = _kept(job) or _computed(job, job.source, on_event)
    return job.model_copy(update={"reference": reference})


def _begins_from_import(job: TrainJob) -> bool:
    if job.pretrained_checkpoint is None or not job.heldout or job.validation.step_0 == "report":
        return False
    return find(job.run_dir, job.id) is None and not Saved(job.checkpoints_dir).steps()


def _not_compared(job: TrainJob, on_event: OnEvent, reason: str) -> TrainJob:
    on_event(event("warning", message=f"{job.name}: step 0 is not compared with Hugging Face: {reason}"))
    return job


def _kept(job: TrainJob) -> Reference | None:
    try:
        reference = Reference.model_validate_json((job.run_dir / REFERENCE).read_bytes())
    except (OSError, ValidationError):
        return None
    same = reference.losses.keys() == {shards.corpus for shards in job.heldout} and reference.source == job.source
    return reference if same else None


def _computed(job: TrainJob, source: Path, on_event: OnEvent) -> Reference:
    def on_progress(heard: Event) -> None:
        if heard.kind in ("progress", "warning"):  # it is not the training that starts or ends
            on_event(heard)

    splits = [
        Split(
            corpus=shards.corpus,
            prefix=shards.prefix,
            megatron_loss=None,
            megatron_tokens=HeldOutWindows(IndexedReader(shards.prefix).tokens, job.sequence_length).predicted_tokens,
        )
        for shards in job.heldout
    ]
    loss = LossJob(
        name=f"{job.name}/{0:07d}",
        step=0,
        splits=tuple(splits),
        sequence_length=job.sequence_length,
        precision=job.precision,
    )
    with scratch() as work:
        task = LossWork(work=work, model=source, job=loss)
        losses = run(WORKER, task, work, Losses, LOSSES, on_progress, {})
    reference = Reference(
        source=source,
        losses={split.corpus: split.loss for split in losses.splits},
        tolerance=TOLERANCE[job.precision],
    )
    job.run_dir.mkdir(parents=True, exist_ok=True)
    write_text(job.run_dir / REFERENCE, reference.model_dump_json(indent=2) + "\n")
    return reference
