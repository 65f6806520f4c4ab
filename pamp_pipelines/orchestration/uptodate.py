"""What already exists for a partition: the artifact that its stage would find instead of making one."""

from pathlib import Path

from pamp_pipelines.conversion.job import export_job, import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import MissingInput, VerificationFailed
from pamp_pipelines.evaluation.export_cache import evicted_export
from pamp_pipelines.evaluation.job import evaluate_job
from pamp_pipelines.evaluation.leaderboard import leaderboard_id
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.publication import is_published
from pamp_pipelines.lake.staging import looking
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.chain import Selection
from pamp_pipelines.orchestration.checks import judged
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.finished import find_finished
from pamp_pipelines.training.resolve import train_job


def existing(catalog: Catalog, lake: Lake, selection: Selection, partition: str | None) -> list[Artifact] | None:
    """The finished artifacts of the selected assets, in their order; None when a run has something to do.

    An input that is missing, and a verdict that failed or was never reached, count as something to do: the run then
    says what is wrong.
    """
    try:
        outputs = wanted(catalog, lake, selection, partition or "")
    except (MissingInput, VerificationFailed):
        return None
    found = [_find(path, id) for path, id in outputs]
    sound = [
        artifact
        for artifact in found
        if artifact is not None
        and judged(artifact.manifest)
        and not artifact.manifest.failed_checks
        and is_published(artifact.path)
    ]
    return sound if len(sound) == len(outputs) else None


def _find(path: Path, id: str) -> Artifact | None:
    """A finished artifact that is not damaged, also an evicted export, since whoever needs that makes it again."""
    evicted = evicted_export(path)
    if evicted is not None and evicted.id == id:
        return evicted
    try:
        return find_finished(path, id)  # of another kind of artifact: nothing is kept beside it
    except VerificationFailed:
        return None


@looking()
def wanted(catalog: Catalog, lake: Lake, selection: Selection, partition: str) -> list[tuple[Path, str]]:
    """Folder and id of what a run would make."""
    match selection.stage:
        case "raw_corpus":
            job = corpus_job(catalog, lake, partition)
            return [(job.output, job.id)]
        case "tokenized_shards":
            shards = tokenize_job(catalog, lake, *partition.split("|"))
            return [(shards.output, shards.id)]
        case "megatron_checkpoint":
            imported = import_job(catalog, lake, partition)
            return [(imported.output, imported.id)]
        case "pretrained_checkpoint":
            training = train_job(catalog, lake, *partition.split("|"), claim=False)
            return [(training.run_dir, training.id)]
        case "hf_export":
            export = export_job(catalog, lake, CheckpointKey.parse(partition))
            return [(export.output, export.id)]
        case "eval_scores":
            scoring = evaluate_job(catalog, lake, CheckpointKey.parse(partition), list(selection.evaluations))
            return [(spec.output, spec.id) for spec in scoring.evaluations]
        case "leaderboard":
            return [(lake.reports_dir, leaderboard_id(lake))]
        case stage:
            raise AssertionError(stage)
