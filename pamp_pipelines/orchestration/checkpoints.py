"""Kept checkpoints as partitions of the external asset ``checkpoint``."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.metadata import manifest_metadata
from pamp_pipelines.orchestration.partitions import CHECKPOINT_PARTITIONS

CHECKPOINT = dg.AssetKey("checkpoint")
DATA_VERSION_TAG = "dagster/data_version"

AssetEvent = dg.AssetObservation | dg.AssetMaterialization


def announce(
    instance: dg.DagsterInstance, emit: Callable[[AssetEvent], Any], key: CheckpointKey, manifest: Manifest
) -> bool:
    """Add the checkpoint's partition and report it, unless Dagster knows it with this content already.

    The observation goes first: an external asset has a data version for staleness only through an observation, and one
    that follows the materialisation makes everything downstream stale at once.
    """
    partition = str(key)
    if known_version(instance, partition) == manifest.content:
        return False
    instance.add_dynamic_partitions(CHECKPOINT_PARTITIONS, [partition])
    metadata = {"step": key.step, **manifest_metadata(manifest)}
    if manifest.location:
        metadata["dagster/uri"] = dg.MetadataValue.path(manifest.location)
    tags = {DATA_VERSION_TAG: manifest.content}
    emit(dg.AssetObservation(CHECKPOINT, partition=partition, metadata=metadata, tags=tags))
    emit(dg.AssetMaterialization(CHECKPOINT, partition=partition, metadata=metadata, tags=tags))
    return True


def known_version(instance: dg.DagsterInstance, partition: str) -> str | None:
    """Data version of the checkpoint's latest materialisation in Dagster."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=CHECKPOINT, asset_partitions=[partition]), limit=1
    ).records
    if not records or records[0].asset_materialization is None:
        return None
    return (records[0].asset_materialization.tags or {}).get(DATA_VERSION_TAG)
