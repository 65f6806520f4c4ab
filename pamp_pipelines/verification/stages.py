"""Import and export with their verdicts: what the assets and the commands call.

The verdict is reached on the finished files before they get their final name, so that a manifest always holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.lake.artifact import Artifact, read_artifact
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import MANIFEST, CheckResult
from pamp_pipelines.lake.publish import lock
from pamp_pipelines.lake.staging import here
from pamp_pipelines.verification.checkpoint import LAYERS, verify_checkpoint
from pamp_pipelines.verification.compare import LOGITS
from pamp_pipelines.verification.job import LossJob
from pamp_pipelines.verification.loss import LOSS, not_compared, verify_loss

_COVERAGE = "coverage"


def import_and_verify(
    job: ImportJob,
    on_event: OnEvent = ignore,
    *,
    layers: int | None = LAYERS,
    profile: ComputeProfile | None = None,
) -> Artifact:
    """`import_hf`, judged by `verify_checkpoint`; the verdicts are among the manifest's checks.

    A verdict that is bad does not raise: the artifact is published with it, and what comes after refuses it. The files
    are written where `profile` says, as by `import_hf`; the verdict is reached here.

    Raises:
        InputError, WorkerFailed: as `import_hf` and `verify_checkpoint`.
    """

    def verify(directory: Path, *, record: bool) -> list[CheckResult]:
        if job.source is None:
            return _from_scratch()
        return verify_checkpoint(job.source, directory, layers=layers, record=record, on_event=on_event)

    artifact = import_hf(job, on_event, partial(verify, record=True), profile=profile)
    return artifact if _judged(artifact, LOGITS) else _judge(artifact, verify(here(artifact.path), record=False))


def export_and_verify(
    job: ExportJob, loss: LossJob | None, on_event: OnEvent = ignore, *, profile: ComputeProfile | None = None
) -> Artifact:
    """`export_hf`, judged by Hugging Face's loss on it.

    Args:
        job: what to export.
        loss: Megatron's figures, from `loss_job`; None where the checkpoint belongs to no run.
        on_event: progress.
        profile: where the weights are written, as by `export_hf`; the verdict is reached here.

    Raises:
        InputError, WorkerFailed: as `export_hf` and `verify_loss`.
    """

    def verify(directory: Path) -> list[CheckResult]:
        if loss is None:
            return [not_compared("The checkpoint belongs to no training run with held-out text.")]
        return [verify_loss(directory, loss, on_event)]

    artifact = export_hf(job, on_event, verify, profile=profile)
    return artifact if _judged(artifact, LOSS) else _judge(artifact, verify(here(artifact.path)))


def _from_scratch() -> list[CheckResult]:
    """The two checks of an import, for a model that has no source: nothing was converted."""
    return [
        CheckResult(
            name=name,
            passed=True,
            severity="WARN",
            description="Nothing to compare: the model starts from random weights.",
            metadata={"compared": False},
        )
        for name in (_COVERAGE, LOGITS)
    ]


def _judged(artifact: Artifact, name: str) -> bool:
    return any(check.name == name for check in artifact.manifest.checks)


def _judge(artifact: Artifact, checks: Sequence[CheckResult]) -> Artifact:
    """Add verdicts to an artifact that was made without them; its files, id and content stay what they are."""
    with lock(artifact.path):
        manifest = artifact.manifest.model_copy(update={"checks": (*artifact.manifest.checks, *checks)})
        write_text(artifact.path / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    return read_artifact(artifact.path)
