"""Kept checkpoints as partitions of the external asset ``checkpoint``."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.metadata import manifest_metadata, place
from pamp_pipelines.orchestration.partitions import CHECKPOINT_PARTITIONS
from pamp_pipelines.orchestration.versions import DATA_VERSION_TAG, recorded_version
from pamp_pipelines.training.kept import read_kept

CHECKPOINT = dg.AssetKey("checkpoint")

AssetEvent = dg.AssetObservation | dg.AssetMaterialization


def announce_unknown(
    instance: dg.DagsterInstance, lake: Lake, *, older_than_s: float = 0.0, at_most: int | None = None
) -> list[str]:
    """Report, outside a run, the kept checkpoints of the lake that Dagster does not know; returns their keys.

    A checkpoint whose files are gone is left out: nothing could be made of it.

    Args:
        instance: where they are reported.
        lake: where they are.
        older_than_s: age of a record in seconds below which its own run is left to report it.
        at_most: how many; the rest is for the next call.
    """
    known = instance.get_materialized_partitions(CHECKPOINT)
    settled = time.time() - older_than_s
    missed = (k for k in lake.kept_checkpoints() if str(k) not in known and _written(lake, k) <= settled)
    added: list[str] = []
    for key in missed:
        if len(added) == at_most:
            break
        with contextlib.suppress(InputError, VerificationFailed):
            announce(instance, instance.report_runless_asset_event, key, read_kept(lake, key))
            added.append(str(key))
    return added


def _written(lake: Lake, key: CheckpointKey) -> float:
    return lake.kept_record(key).stat().st_mtime


def announce(
    instance: dg.DagsterInstance, emit: Callable[[AssetEvent], Any], key: CheckpointKey, manifest: Manifest
) -> None:
    """Add the checkpoint's partition and report it, unless Dagster knows it with this content already.

    The observation goes first: an external asset has a data version for staleness only through an observation, and one
    that follows the materialisation makes everything downstream stale at once.

    Args:
        instance: where the partition is added.
        emit: ``context.log_event`` inside a run, ``instance.report_runless_asset_event`` outside.
        key: partition key.
        manifest: the checkpoint's record.
    """
    partition = str(key)
    if recorded_version(instance, CHECKPOINT, partition) == manifest.content:
        return
    instance.add_dynamic_partitions(CHECKPOINT_PARTITIONS, [partition])
    metadata = {"step": key.step, **manifest_metadata(manifest)}
    if manifest.location:
        metadata |= place(Path(manifest.location), manifest.kind)
    tags = {DATA_VERSION_TAG: manifest.content}
    emit(dg.AssetObservation(CHECKPOINT, partition=partition, metadata=metadata, tags=tags))
    emit(dg.AssetMaterialization(CHECKPOINT, partition=partition, metadata=metadata, tags=tags))
