"""The payload of published artifacts that is here: how much, what may go, and room for more."""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.leases import last_used, unleased
from pamp_pipelines.lake.manifest import MANIFEST, FileEntry, Manifest
from pamp_pipelines.lake.mirror import LARGE, Mirror, is_manifest

_PARTS = "parts"


class CacheTooSmall(PampError):
    """What has to be staged does not fit into the budget beside what is in use."""


@dataclass(frozen=True)
class Unit:
    """What is staged and removed as one: an artifact, or a kept checkpoint with its record.

    Attributes:
        root: the directory that the manifest's paths are relative to.
    """

    root: Path
    manifest: Manifest

    @property
    def place(self) -> Path:
        """The artifact's directory, or the record."""
        if self.manifest.kind != "checkpoint":
            return self.root
        return self.root / "kept" / f"{self.manifest.stats['step']:07d}.json"

    @cached_property
    def here(self) -> int:
        """Bytes of its files that are here."""
        return sum(_size(self.root / entry.path) for entry in self.manifest.files)

    @classmethod
    def read(cls, file: Path) -> "Unit":
        """Raises OSError, ValueError: no manifest."""
        manifest = Manifest.model_validate_json(file.read_bytes())
        return cls(file.parent if file.name == MANIFEST else file.parent.parent, manifest)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def units_here(mirror: Mirror) -> Iterator[Unit]:
    """Published units of which payload is here, unless they belong to a run that is not finished."""
    for path, entry in mirror.entries().items():
        if not is_manifest(path) or not entry.names or entry.names.partition(":")[0] not in LARGE:
            continue
        with contextlib.suppress(OSError, ValueError):
            unit = Unit.read(mirror.root / path)
            if unit.here and mirror.published(unit.manifest) and not _in_unfinished_run(unit):
                yield unit


def _in_unfinished_run(unit: Unit) -> bool:
    return unit.manifest.kind == "checkpoint" and not (unit.root / MANIFEST).is_file()


def trim(mirror: Mirror, needed: int = 0) -> int:
    """Remove the least recently used payload until ``needed`` more bytes fit; returns the bytes that are left.

    What is leased stays, and what an unfinished run was given, whose worker may outlive whoever leased it.
    """
    units = sorted(units_here(mirror), key=lambda unit: (last_used(unit.place), unit.place))
    total = sum(unit.here for unit in units) + _reserved(mirror)
    running = _unfinished_jobs(mirror) if total + needed > mirror.budget else ""
    for unit in units:
        if total + needed <= mirror.budget:
            break
        if str(unit.root) in running:
            continue
        with unleased(unit.place) as free:
            if free:
                _remove(unit)
                total -= unit.here
    return total


def _remove(unit: Unit) -> None:
    for entry in unit.manifest.files:
        (unit.root / entry.path).unlink(missing_ok=True)


def _unfinished_jobs(mirror: Mirror) -> str:
    """The jobs of runs that were begun here and have no manifest, as one text in which paths can be looked for.

    One that cannot be read protects nothing: its run cannot go on with it either.
    """
    texts = []
    for job in (mirror.root / "runs").glob("*/*/v*/job.json"):
        if not (job.parent / MANIFEST).is_file():
            with contextlib.suppress(OSError):
                texts.append(job.read_text(errors="replace"))
    return "\n".join(texts)


@contextlib.contextmanager
def room(mirror: Mirror, unit: Unit, files: list[FileEntry]) -> Iterator[Path]:
    """A folder for files that are being fetched, in which each has its final size from the start: ``0``, ``1`` …

    Raises:
        CacheTooSmall: they do not fit; says what is needed, what there is, and what is in use.
    """
    needed = sum(entry.bytes for entry in files)
    folder = mirror.private / _PARTS / secrets.token_hex(8)
    if needed > mirror.budget:
        raise CacheTooSmall(
            f"{unit.place}: {needed:,} bytes have to be staged and the cache may take {mirror.budget:,}; raise "
            "PAMP_LAKE_CACHE_BYTES, or let PAMP_LAKE_CACHE name a larger disk."
        )
    with contextlib.ExitStack() as stack:
        with mirror.locked("cache.lock"):
            _sweep(mirror)
            used = trim(mirror, needed)
            if used + needed > mirror.budget:
                raise CacheTooSmall(
                    f"{unit.place}: {needed:,} bytes have to be staged; {used:,} of the cache's {mirror.budget:,} are "
                    "in use and cannot go. Raise PAMP_LAKE_CACHE_BYTES, or run again when other work has ended."
                )
            folder.mkdir(parents=True)
            stream = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(stream, fcntl.LOCK_EX)
            for number, entry in enumerate(files):
                with (folder / str(number)).open("wb") as part:
                    os.truncate(part.fileno(), entry.bytes)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _parts(mirror: Mirror) -> list[Path]:
    return sorted((mirror.private / _PARTS).glob("*/lock"))


def _reserved(mirror: Mirror) -> int:
    return sum(_size(file) for lock in _parts(mirror) for file in lock.parent.iterdir())


def _sweep(mirror: Mirror) -> None:
    """Remove what killed fetches left."""
    for lock in _parts(mirror):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), lock.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
