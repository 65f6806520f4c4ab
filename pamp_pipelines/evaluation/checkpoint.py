"""Scores of a kept checkpoint: what the asset and `pamp evaluate KEY` call."""

from __future__ import annotations

from collections.abc import Sequence

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.evaluation.export_cache import keep_within_budget, ready
from pamp_pipelines.evaluation.job import evaluate_job
from pamp_pipelines.evaluation.run import evaluate
from pamp_pipelines.lake.artifact import Artifact, find
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.store import CheckpointKey, Lake


def evaluate_checkpoint(
    catalog: Catalog, lake: Lake, key: CheckpointKey, evaluations: Sequence[str], on_event: OnEvent = ignore
) -> list[Artifact]:
    """Find the scores of a checkpoint, or make them from its export; one artifact per evaluation, in that order.

    An export that was evicted is made again only where scores are missing. Afterwards exports are evicted down to the
    declared budget.

    Raises:
        MissingInput, VerificationFailed, InputError, WorkerFailed: as ``evaluate_job``, ``ready`` and ``evaluate``.
    """
    job = evaluate_job(catalog, lake, key, evaluations)
    found = [artifact for spec in job.evaluations if (artifact := find(spec.output, spec.id)) is not None]
    if len(found) == len(job.evaluations):
        return found
    with ready(catalog, lake, key, on_event):
        # Resolved anew: an export that another version of its stage made again has another content.
        artifacts = evaluate(evaluate_job(catalog, lake, key, evaluations), on_event)
    keep_within_budget(catalog, lake, key, on_event)
    return artifacts
