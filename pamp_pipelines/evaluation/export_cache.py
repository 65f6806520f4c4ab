"""Exports as a cache: they can be made again from their checkpoints, so they may go when space is short.

An export that is evicted leaves its manifest behind. When it is needed again it is made again and must come out with
the same content; the manifest, with its verdicts, is then put back. An export that is being scored is leased: a shared
flock on a sibling file, which the kernel drops with its holder, keeps it where it is. One that was made and not scored
yet is pending while a declared evaluation has no scores of it, and stays, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import InputError, MissingInput, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact, read_manifest
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.publish import lock
from pamp_pipelines.lake.staging import obtainable
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.training.resolve import export_job
from pamp_pipelines.verification.loss import loss_job
from pamp_pipelines.verification.stages import export_and_verify

GB = 10**9
_SILENT_S = 3600.0
"""Seconds without an event after which a worker that nobody watches is not waited for."""
EVICTED = ".evicted.json"
"""How the name of an evicted export's manifest ends."""


@dataclass(frozen=True)
class Eviction:
    """What ``evict`` did.

    Attributes:
        evicted: exports that went, and their bytes.
        leased: those that were over the budget and in use: being scored or being made.
        pending: those that were over the budget and wait to be scored.
        bytes_left: of all exports that are left.
    """

    evicted: tuple[tuple[Path, int], ...]
    leased: tuple[Path, ...]
    pending: tuple[Path, ...]
    bytes_left: int


@contextlib.contextmanager
def leased(export: Path) -> Iterator[None]:
    """Keep an export from being evicted, and remember that it was used.

    Raises:
        MissingInput: it is not there any more.
    """
    with _lease(export):
        if not (export / MANIFEST).is_file():
            raise MissingInput("hf_export", None, f"{export} was evicted; it can be made again from its checkpoint.")
        yield


@contextlib.contextmanager
def ready(catalog: Catalog, lake: Lake, key: CheckpointKey, on_event: OnEvent = ignore) -> Iterator[None]:
    """Keep a checkpoint's export from being evicted, and make it again first if that has happened.

    Raises:
        VerificationFailed, MissingInput: as ``restore``.
    """
    with _lease(lake.export_dir(key)):  # before it is looked for, so that it cannot go in between
        restore(catalog, lake, key, on_event)
        yield


def evict(lake: Lake, budget: int, pending: Collection[Path] = ()) -> Eviction:
    """Remove exports, the least recently used first, until all together take no more than ``budget`` bytes.

    Those that a remote lake has are left to its own cache, which fetches them again instead of making them.

    Args:
        lake: whose exports.
        budget: bytes.
        pending: exports that stay although they are over the budget.
    """
    for leftover in (lake.root / "exports").glob("*/*/v*/.*.evicted.partial"):
        shutil.rmtree(leftover, ignore_errors=True)  # of an eviction that was killed
    mine = [export for export in lake.artifacts("hf_export") if not obtainable(export.path, export.manifest)]
    exports = sorted(mine, key=lambda export: (_used(export.path), str(export.path)))
    total = sum(export.bytes for export in exports)
    gone, busy, waiting = [], [], []
    for export in exports:
        if total <= budget:
            break
        if export.path in pending:
            waiting.append(export.path)
        elif _remove(export.path):
            gone.append((export.path, export.bytes))
            total -= export.bytes
        else:
            busy.append(export.path)
    return Eviction(tuple(gone), tuple(busy), tuple(waiting), total)


def _remove(export: Path) -> bool:
    """Evict one; False where it is leased or being made."""
    with contextlib.ExitStack() as held:
        for file in (_lease_file(export), export.parent / f".{export.name}.lock"):
            stream = held.enter_context(file.open("a"))
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        if (export / MANIFEST).is_file():  # else another process has just evicted it
            write_text(_record(export), (export / MANIFEST).read_text())
            doomed = export.with_name(f".{export.name}.evicted.partial")  # as the leftovers of builds are named
            shutil.rmtree(doomed, ignore_errors=True)
            export.rename(doomed)  # readers see all of it or nothing
            shutil.rmtree(doomed, ignore_errors=True)  # others may be sweeping it
    return True


def pending_exports(catalog: Catalog, lake: Lake) -> set[Path]:
    """Exports that were not scored since they were made, and that a declared evaluation has no scores of.

    Also those that a worker is scoring whose caller is gone, and its lease with it: on a cluster a worker goes on.
    """
    found = set(_being_scored(lake))
    for key in lake.kept_checkpoints():
        export = lake.export_dir(key)
        if not (export / MANIFEST).is_file() or _scored_since_made(export):
            continue
        if any(not (lake.scores_dir(key, name) / MANIFEST).is_file() for name in catalog.evaluations):
            found.add(export)
    return found


def keep_within_budget(catalog: Catalog, lake: Lake, key: CheckpointKey, on_event: OnEvent = ignore) -> Eviction | None:
    """Evict exports down to the budget that the profile of a checkpoint's training config declares; None without one.

    Args:
        catalog: the project's declarations.
        lake: whose exports.
        key: the checkpoint that was just exported or scored.
        on_event: gets ``progress`` for what went, and a ``warning`` where the budget cannot be kept.
    """
    config = catalog.training_configs.get(key.training_config)
    budget = catalog.profile(config.profile).export_budget_gb if config else None
    if budget is None:
        return None
    done = evict(lake, int(budget * GB), pending_exports(catalog, lake))
    for path, size in done.evicted:
        on_event(event("progress", evicted=str(path), bytes=size))
    if done.bytes_left > budget * GB:
        on_event(
            event(
                "warning",
                message=f"exports take {done.bytes_left / GB:.3g} GB, over the budget of {budget:g} GB: "
                f"{len(done.leased)} are in use and {len(done.pending)} wait to be scored; score those, "
                "or raise `export_budget_gb` in the profile.",
            )
        )
    return done


def _being_scored(lake: Lake) -> Iterator[Path]:
    """Exports whose scoring has reported something of late."""
    for events in (lake.root / "scores").glob("*/*/v*/.work-*/events.jsonl"):
        with contextlib.suppress(OSError, ValueError, KeyError):  # it ends, or its files are half written
            if events.stat().st_mtime > time.time() - _SILENT_S:
                yield Path(json.loads((events.parent / "job.json").read_text())["subject"]["directory"])


def evicted_export(export: Path) -> Artifact | None:
    """What an evicted export was; None for one that is there or never was."""
    record = _record(export)
    return Artifact(export, read_manifest(record)) if record.is_file() and not (export / MANIFEST).is_file() else None


def evicted_exports(lake: Lake) -> Iterator[tuple[Path, Manifest]]:
    """Records of evicted exports, and the manifests that they hold; unreadable ones are left out."""
    for record in sorted((lake.root / "exports").glob(f"*/*/v*/.*{EVICTED}")):
        try:
            found = evicted_export(record.with_name(record.name.removeprefix(".").removesuffix(EVICTED)))
        except InputError:
            continue  # damaged: whoever needs that export is told
        if found is not None:
            yield record, found.manifest


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
    with lock(path.with_name(f"{path.name}.restore")):  # several may need it at once
        if not record.is_file():
            return False
        before = read_manifest(record)
        if there := (path / MANIFEST).is_file():  # made again by its own stage since, with verdicts of its own
            _require_same(path, before, read_manifest(path / MANIFEST))
        else:
            job = export_job(catalog, lake, key)
            made = export_hf(job, on_event)
            _require_same(path, before, made.manifest)
            if made.id == before.id:
                write_text(path / MANIFEST, record.read_text())  # the same files, and the verdicts on them
            else:
                export_and_verify(job, loss_job(lake, key), on_event)  # by another version of the stage: judged anew
        record.unlink()
        return not there


def _require_same(export: Path, before: Manifest, made: Manifest) -> None:
    if made.id == before.id and made.content != before.content:
        raise VerificationFailed(
            f"{export}: made again with content {made.content[:12]}, but {before.content[:12]} was scored before; the "
            f"checkpoint or the code has changed. Delete {_record(export)} to accept the new one, and score it again."
        )


@contextlib.contextmanager
def _lease(export: Path) -> Iterator[None]:
    with _lease_file(export).open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        os.utime(stream.fileno())
        yield


def _lease_file(export: Path) -> Path:
    export.parent.mkdir(parents=True, exist_ok=True)
    return export.parent / f".{export.name}.lease"


def _record(export: Path) -> Path:
    return export.parent / f".{export.name}{EVICTED}"


def _used(export: Path) -> float:
    """When it was last scored, or made if that was later."""
    return max((file.stat().st_mtime for file in (_lease_file(export), export / MANIFEST) if file.is_file()), default=0)


def _scored_since_made(export: Path) -> bool:
    file = _lease_file(export)
    return file.is_file() and file.stat().st_mtime >= (export / MANIFEST).stat().st_mtime
