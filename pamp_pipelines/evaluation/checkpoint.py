"""Scores of kept checkpoints: what the asset and `pamp evaluate KEY` call."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.evaluation.array import evaluate_many
from pamp_pipelines.evaluation.export_cache import keep_within_budget, ready
from pamp_pipelines.evaluation.job import evaluate_job
from pamp_pipelines.evaluation.run import evaluate
from pamp_pipelines.lake.artifact import Artifact, find
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.store import CheckpointKey, Lake


def evaluate_checkpoint(
    catalog: Catalog,
    lake: Lake,
    key: CheckpointKey,
    evaluations: Sequence[str],
    on_event: OnEvent = ignore,
    *,
    profile: ComputeProfile | None = None,
) -> list[Artifact]:
    """Find the scores of a checkpoint, or make them from its export; one artifact per evaluation, in that order.

    An export that was evicted is made again only where scores are missing. Afterwards exports are evicted down to the
    declared budget.

    Args:
        profile: where to score; default: where the checkpoint's config trains.

    Raises:
        MissingInput, VerificationFailed, InputError, WorkerFailed: as ``evaluate_job``, ``ready`` and ``evaluate``.
    """
    if found := _all_scores(catalog, lake, key, evaluations):
        return found
    with ready(catalog, lake, key, on_event):
        # Resolved anew: an export that another version of its stage made again has another content.
        job = evaluate_job(catalog, lake, key, evaluations)
        artifacts = evaluate(job.model_copy(update={"profile": profile}) if profile else job, on_event)
    keep_within_budget(catalog, lake, key, on_event)
    return artifacts


def evaluate_checkpoints(
    catalog: Catalog,
    lake: Lake,
    keys: Sequence[CheckpointKey],
    evaluations: Sequence[str],
    on_event: OnEvent = ignore,
    *,
    profile: ComputeProfile | None = None,
) -> list[Artifact]:
    """Scores of many checkpoints: on a cluster's profile in an array job, else one after another.

    Raises:
        As ``evaluate_checkpoint`` and ``evaluate_many``.
    """
    keys = list(dict.fromkeys(keys))
    if profile is None or profile.launcher == "local" or len(keys) == 1:
        each = [evaluate_checkpoint(catalog, lake, key, evaluations, on_event, profile=profile) for key in keys]
        return [artifact for artifacts in each for artifact in artifacts]
    with contextlib.ExitStack() as exports:
        for key in keys:
            if not _all_scores(catalog, lake, key, evaluations):
                exports.enter_context(ready(catalog, lake, key, on_event))
        jobs = [evaluate_job(catalog, lake, key, evaluations) for key in keys]
        artifacts = evaluate_many(jobs, profile, lake.root / "scores", on_event)
    for key in keys:
        keep_within_budget(catalog, lake, key, on_event)
    return artifacts


def _all_scores(catalog: Catalog, lake: Lake, key: CheckpointKey, evaluations: Sequence[str]) -> list[Artifact]:
    """All of a checkpoint; empty where some are missing."""
    job = evaluate_job(catalog, lake, key, evaluations)
    found = [artifact for spec in job.evaluations if (artifact := find(spec.output, spec.id)) is not None]
    return found if len(found) == len(job.evaluations) else []
