"""Kept checkpoints as partitions of the external asset ``checkpoint``."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Any

import dagster as dg

from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.evaluation.export_cache import evicted_export
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.store import CheckpointKey, Lake, LeftOut
from pamp_pipelines.orchestration.damage import leaving_out
from pamp_pipelines.orchestration.metadata import manifest_metadata, place
from pamp_pipelines.orchestration.partitions import CHECKPOINT_PARTITIONS
from pamp_pipelines.orchestration.versions import DATA_VERSION_TAG, recorded_version
from pamp_pipelines.training.kept import KIND, read_kept, read_record

CHECKPOINT = dg.AssetKey("checkpoint")

AssetEvent = dg.AssetObservation | dg.AssetMaterialization

_TOGETHER = 500
"""Partitions that are added by one statement: databases limit its parameters."""


@dataclass(frozen=True)
class Announced:
    """What ``announce_unknown`` did.

    Attributes:
        added: keys that are partitions now and were not, oldest first.
        left_out: what of the records is no checkpoint that could be shown.
    """

    added: tuple[str, ...]
    left_out: LeftOut


def announce_unknown(
    instance: dg.DagsterInstance, lake: Lake, *, before: float = float("inf"), at_most: int | None = None
) -> Announced:
    """Report, outside a run, the kept checkpoints of the lake that Dagster does not know.

    Those are such without a partition, too: one that was deleted in the UI comes back, since the lake still has it.

    Args:
        instance: where they are reported.
        lake: where they are.
        before: Unix time in seconds; a record that was written later is left to its own run to report.
        at_most: how many; the rest is for the next call.
    """
    left_out: LeftOut = {}
    partitions = set(instance.get_dynamic_partitions(CHECKPOINT_PARTITIONS))
    known = partitions & instance.get_materialized_partitions(CHECKPOINT)
    unknown = showable(lake, left_out, before=before, known=known)
    events: dict[str, list[AssetEvent]] = {}
    for key in sorted(unknown, key=lambda key: (unknown[key].created, key))[:at_most]:
        with leaving_out(left_out, lake.kept_record(key)):
            events[str(key)] = _events(key, unknown[key])
    for keys in batched(events, _TOGETHER):
        instance.add_dynamic_partitions(CHECKPOINT_PARTITIONS, list(keys))
    for partition, reports in events.items():
        if recorded_version(instance, CHECKPOINT, partition) != unknown[CheckpointKey.parse(partition)].content:
            for report in reports:
                instance.report_runless_asset_event(report)
    return Announced(tuple(events), left_out)


def showable(
    lake: Lake, left_out: LeftOut, *, before: float = float("inf"), known: Collection[str] = ()
) -> dict[CheckpointKey, Manifest]:
    """Kept checkpoints that can be shown, with their records, by key.

    One whose files are gone is shown where an export or scores were made of it; otherwise nothing could be made of it.

    Args:
        lake: where they are.
        left_out: gets the others, and why.
        before: Unix time in seconds; records that were written later are passed over.
        known: keys that are passed over.
    """
    found = {}
    for key in lake.kept_checkpoints(left_out):
        if str(key) in known:
            continue
        record = lake.kept_record(key)
        with leaving_out(left_out, record):
            if record.stat().st_mtime <= before:
                found[key] = _record(lake, key)
    return found


def _record(lake: Lake, key: CheckpointKey) -> Manifest:
    record = read_record(lake.version_dir(key.model, key.training_config, key.version), key.step)
    if record.kind != KIND:
        raise InputError(f"{lake.kept_record(key)}: is of a {record.kind}, where records of kept checkpoints are")
    try:
        return read_kept(lake, key)
    except PampError:
        if _made_of(lake, key):
            return record
        raise


def _made_of(lake: Lake, key: CheckpointKey) -> bool:
    """Whether the lake has, or had before an eviction, an export of a checkpoint, or scores."""
    export = lake.export_dir(key)
    if (export / MANIFEST).is_file() or any(lake.scores_dir(key, "").glob(f"*/{MANIFEST}")):
        return True
    return evicted_export(export) is not None


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
    if not instance.has_dynamic_partition(CHECKPOINT_PARTITIONS, partition):
        instance.add_dynamic_partitions(CHECKPOINT_PARTITIONS, [partition])
    if recorded_version(instance, CHECKPOINT, partition) == manifest.content:
        return
    for event in _events(key, manifest):
        emit(event)


def _events(key: CheckpointKey, manifest: Manifest) -> list[AssetEvent]:
    metadata = {"step": key.step, **manifest_metadata(manifest)}
    if manifest.location:
        metadata |= place(Path(manifest.location), manifest.kind)
    tags = {DATA_VERSION_TAG: manifest.content}
    return [
        event(CHECKPOINT, partition=str(key), metadata=metadata, tags=tags)
        for event in (dg.AssetObservation, dg.AssetMaterialization)
    ]
