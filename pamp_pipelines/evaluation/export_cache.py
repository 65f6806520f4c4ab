"""Exports as a cache: they can be made again from their checkpoints, so they may go when space is short.

An export that is evicted leaves its manifest behind. When it is needed again it is made again and must come out with
the same content; the manifest, with its verdicts, is then put back. An export that is being scored is leased: a shared
flock on a sibling file, which the kernel drops with its holder, keeps it where it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import MissingInput, VerificationFailed
from pamp_pipelines.lake.artifact import read_manifest
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import MANIFEST
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.training.resolve import export_job


@dataclass(frozen=True)
class Eviction:
    """What ``evict`` did: exports that went and their bytes, those kept although over the budget, bytes left."""

    evicted: tuple[tuple[Path, int], ...]
    leased: tuple[Path, ...]
    bytes_left: int


@contextlib.contextmanager
def leased(export: Path) -> Iterator[None]:
    """Keep an export from being evicted, and remember that it was used.

    Raises:
        MissingInput: it is not there any more.
    """
    with _lease_file(export).open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        os.utime(stream.fileno())
        if not (export / MANIFEST).is_file():
            raise MissingInput("hf_export", None, f"{export} was evicted; it can be made again from its checkpoint.")
        yield


def evict(lake: Lake, budget: int) -> Eviction:
    """Remove exports, the least recently used first, until all together take no more than ``budget`` bytes."""
    exports = sorted(lake.artifacts("hf_export"), key=lambda export: (_used(export.path), str(export.path)))
    total = sum(export.bytes for export in exports)
    gone, busy = [], []
    for export in exports:
        if total <= budget:
            break
        with _lease_file(export.path).open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy.append(export.path)
                continue
            write_text(_record(export.path), (export.path / MANIFEST).read_text())
            doomed = export.path.with_name(
                f".{export.path.name}.evicted.partial"
            )  # as the leftovers of builds are named
            shutil.rmtree(doomed, ignore_errors=True)
            export.path.rename(doomed)  # readers see all of it or nothing
            shutil.rmtree(doomed)
        gone.append((export.path, export.bytes))
        total -= export.bytes
    return Eviction(tuple(gone), tuple(busy), total)


def restore(catalog: Catalog, lake: Lake, key: CheckpointKey, on_event: OnEvent = ignore) -> bool:
    """Make an evicted export again; False where it is there or never was.

    Raises:
        VerificationFailed: it came out with other content, or its checkpoint is damaged.
        MissingInput: its checkpoint is gone.
    """
    path = lake.export_dir(key)
    record = _record(path)
    if not record.is_file():
        return False
    if (path / MANIFEST).is_file():  # made again by its own stage since
        record.unlink()
        return False
    before = read_manifest(record)
    made = export_hf(export_job(catalog, lake, key), on_event)
    if made.id == before.id and made.content != before.content:
        raise VerificationFailed(
            f"{path}: made again with content {made.content[:12]}, but {before.content[:12]} was scored before; "
            "the checkpoint or the code has changed. Delete this export and materialise hf_export again."
        )
    if made.id == before.id:
        write_text(path / MANIFEST, record.read_text())  # the same files, and the verdicts on them
    record.unlink()
    return True


def _lease_file(export: Path) -> Path:
    export.parent.mkdir(parents=True, exist_ok=True)
    return export.parent / f".{export.name}.lease"


def _record(export: Path) -> Path:
    return export.parent / f".{export.name}.evicted.json"


def _used(export: Path) -> float:
    """When it was last scored, else when it was made."""
    file = _lease_file(export)
    return (file if file.is_file() else export / MANIFEST).stat().st_mtime
