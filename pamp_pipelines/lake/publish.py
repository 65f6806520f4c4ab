"""Writing artifacts: a directory appears under its final name whole, or not at all."""

import contextlib
import datetime
import errno
import fcntl
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.atomic import exchange, fsync_dir, fsync_file, write_text
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.hashing import sha256_files
from pamp_pipelines.lake.integrity import memory_of, remember
from pamp_pipelines.lake.manifest import MANIFEST, ArtifactRef, CheckResult, FileEntry, Manifest, content_hash
from pamp_pipelines.lake.occupied import require_replaceable
from pamp_pipelines.lake.producer import producer


@dataclass
class Draft:
    """An artifact being written: put files into ``dir``, fill ``stats`` and ``checks``."""

    dir: Path
    stats: dict[str, Any] = field(default_factory=dict)
    checks: list[CheckResult] = field(default_factory=list)
    location: str | None = None
    _artifact: Artifact | None = None

    @property
    def artifact(self) -> Artifact:
        """The finished artifact; only after the ``with`` block."""
        if self._artifact is None:
            raise RuntimeError("the artifact is not published yet")
        return self._artifact


def file_entries(root: Path) -> list[FileEntry]:
    """Size and hash of every file below ``root`` but the manifest, sorted by path."""
    files = [f for f in sorted(root.rglob("*")) if f.is_file() and f != root / MANIFEST]
    return [
        FileEntry(path=file.relative_to(root).as_posix(), bytes=file.stat().st_size, sha256=digest)
        for file, digest in zip(files, sha256_files(files), strict=True)
    ]


def utc_now() -> str:
    """Current time, UTC, ISO 8601 with seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def as_ref(input: Artifact | ArtifactRef) -> ArtifactRef:
    return input.ref if isinstance(input, Artifact) else input


@contextlib.contextmanager
def lock(final: Path, on_event: OnEvent = ignore) -> Iterator[None]:
    """Hold the right to build ``final``; a second process says that it waits, and then finds it finished.

    The lock is an flock on a sibling file: the kernel drops it with its holder, so a killed build blocks nobody.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with (final.parent / f".{final.name}.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_event(event("warning", message=f"{final}: another process writes it; waiting until that one has ended"))
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def sweep(final: Path) -> None:
    """Remove what killed builds of ``final`` left; call while holding its lock."""
    for ending in ("partial", "run.partial", "old.partial"):
        for leftover in siblings(final, ending):
            shutil.rmtree(leftover, ignore_errors=True)


def siblings(final: Path, ending: str) -> list[Path]:
    """What builds of ``final``, and of no other name, have beside it: ``.NAME.TOKEN.ending``, no dot in the token.

    A pattern such as ``.qwen2.*.partial`` would take what a build of ``qwen2.5`` is writing.
    """
    named = re.compile(rf"\.{re.escape(final.name)}\.[^.]+\.{re.escape(ending)}")
    return sorted(path for path in final.parent.glob(".*") if named.fullmatch(path.name))


@contextlib.contextmanager
def publish(
    final: Path,
    *,
    kind: str,
    id: str,
    inputs: Sequence[Artifact | ArtifactRef] = (),
    declaration: dict[str, Any] | None = None,
) -> Iterator[Draft]:
    """Build an artifact in a temporary sibling of ``final`` and rename it when the block ends without an error.

    Every file is hashed and fsynced before the manifest is written; the rename comes last. An artifact already at
    ``final`` is replaced. On an error, and on a full disk, nothing is left behind.

    Raises:
        InputError: ``final`` is occupied by something that is not an older artifact of this kind.
        PampError: the disk is full; names the folder.
    """
    require_replaceable(final, kind)
    final.parent.mkdir(parents=True, exist_ok=True)
    sweep(final)
    token = secrets.token_hex(4)
    draft = Draft(final.parent / f".{final.name}.{token}.partial")
    draft.dir.mkdir()
    try:
        yield draft
        files = file_entries(draft.dir)
        for entry in files:
            fsync_file(draft.dir / entry.path)
        for folder in {draft.dir, *(f for f in draft.dir.rglob("*") if f.is_dir())}:
            fsync_dir(folder)
        manifest = Manifest(
            kind=kind,
            id=id,
            content=content_hash(files),
            created=utc_now(),
            inputs=tuple(as_ref(i) for i in inputs),
            declaration=declaration or {},
            producer=producer(),
            files=tuple(files),
            stats=draft.stats,
            checks=tuple(draft.checks),
            location=draft.location,
        )
        write_text(draft.dir / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        _replace(draft.dir, final, token)
    except OSError as error:
        shutil.rmtree(draft.dir, ignore_errors=True)
        if error.errno == errno.ENOSPC:
            raise PampError(f"{final.parent}: no space left on the disk; free some and run again.") from error
        raise
    except BaseException:
        shutil.rmtree(draft.dir, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):  # only saves reading the files again
        remember(final, manifest, memory_of(final))
    draft._artifact = Artifact(final, manifest)


def _replace(source: Path, final: Path, token: str) -> None:
    """Give a directory the name of another, which is removed afterwards."""
    old = final.parent / f".{final.name}.{token}.old.partial"
    if not final.exists():
        source.rename(final)
    elif exchange(source, final):
        old = source
    else:
        _replace_in_two_steps(source, final, old)
    fsync_dir(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _replace_in_two_steps(source: Path, final: Path, old: Path) -> None:
    final.rename(old)
    try:
        source.rename(final)
    except BaseException:
        old.rename(final)
        raise
