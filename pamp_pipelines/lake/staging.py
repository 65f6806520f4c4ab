"""Payload that is published and not here: fetched, compared with its SHA-256, and only then given its name."""

import contextlib
import errno
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

from pamp_pipelines.errors import DiskFull, StorageError, VerificationFailed
from pamp_pipelines.lake.atomic import fsync_file
from pamp_pipelines.lake.cache import Unit, room
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.leases import hold
from pamp_pipelines.lake.manifest import MANIFEST, FileEntry, Manifest
from pamp_pipelines.lake.mirror import CATALOGUE, LARGE, PAYLOAD, THREADS, Mirror, mirror_of, names_of
from pamp_pipelines.lake.remote import RANGE_BYTES, ObjectMissing
from pamp_pipelines.lake.transfer import Transfer

_LOOKING: ContextVar[bool] = ContextVar("looking", default=False)
_LISTENER: ContextVar[OnEvent] = ContextVar("listener", default=ignore)


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Inside, what is published counts as being here and large files are not fetched: to ask what exists."""
    token = _LOOKING.set(True)
    try:
        yield
    finally:
        _LOOKING.reset(token)


@contextlib.contextmanager
def listening(on_event: OnEvent) -> Iterator[None]:
    """Inside, ``on_event`` gets ``progress`` of what is fetched: whoever asks for a path has no handler at hand."""
    token = _LISTENER.set(on_event)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def listener() -> OnEvent:
    return _LISTENER.get()


def obtainable(root: Path, manifest: Manifest) -> bool:
    """Whether files of the artifact that are not at ``root`` can be fetched."""
    mirror = mirror_of(root)
    return mirror is not None and _staged(mirror, manifest)


def _staged(mirror: Mirror, manifest: Manifest) -> bool:
    return manifest.kind in LARGE and mirror.published(manifest)


def here(path: Path) -> Path:
    """A file or a folder of an artifact of a lake, fetched first where only its manifest is here.

    Raises:
        StorageError, InputError: the store does not answer.
        VerificationFailed: an object is missing or damaged there.
        CacheTooSmall: there is no room for it.
    """
    if (mirror := mirror_of(path)) is None:
        return path
    for root in (path, *path.parents):
        if root == mirror.root:
            break
        if (root / MANIFEST).is_file():
            with contextlib.suppress(ValueError):  # its reader says what is wrong with it
                stage(root, Unit.read(root / MANIFEST).manifest, path.relative_to(root).as_posix())
            break
    return path


def stage(root: Path, manifest: Manifest, only: str | None = None) -> frozenset[str]:
    """Lease an artifact and fetch those of its files that are not here; returns the paths that were compared just now.

    Args:
        root: the directory that the manifest's paths are relative to.
        manifest: of an artifact, or the record of a checkpoint.
        only: a file, or a folder, of it.

    Raises:
        As `here`.
    """
    if (mirror := mirror_of(root)) is None:
        return frozenset()
    unit = Unit(root, manifest)
    if manifest.kind not in LARGE or (only is None and _LOOKING.get()):
        return frozenset()
    hold(unit.place)
    if not _absent(unit, only) or not _staged(mirror, manifest):
        return frozenset()
    with mirror.locked(f"fetch-{names_of(manifest).split(':')[1][:32]}.lock"):
        files = _absent(unit, only)  # another process may have fetched them while this one waited
        _fetch(mirror, unit, files)
    return frozenset(entry.path for entry in files)


def _absent(unit: Unit, only: str | None) -> list[FileEntry]:
    return [
        entry
        for entry in unit.manifest.files
        if (only in (None, ".", entry.path) or entry.path.startswith(f"{only}/"))
        and not (unit.root / entry.path).is_file()
    ]


def _fetch(mirror: Mirror, unit: Unit, files: list[FileEntry]) -> None:
    progress = Transfer(listener(), "fetch", str(unit.place), sum(entry.bytes for entry in files))
    with room(mirror, unit, files) as folder, ThreadPoolExecutor(THREADS) as pool:
        jobs = [
            (entry, folder / str(number), _ranges(pool, mirror, unit, entry, folder / str(number), progress))
            for number, entry in enumerate(files)
        ]
        try:
            for entry, part, ranges in jobs:
                for one in ranges:
                    progress.wait(one)
                    one.result()
                _place(mirror, unit, entry, part)
        except BaseException as error:
            for _, _, ranges in jobs:
                for one in ranges:
                    one.cancel()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(mirror.root) from error
            raise
    progress.end()


def _ranges(
    pool: ThreadPoolExecutor, mirror: Mirror, unit: Unit, entry: FileEntry, part: Path, progress: Transfer
) -> list[Future[None]]:
    source = _object(mirror, unit, entry)

    def fetch(start: int) -> None:
        end = min(entry.bytes, start + RANGE_BYTES)
        try:
            data = mirror.store.read_range(source, start, end)
        except ObjectMissing:
            raise _wrong(mirror, unit, f"{mirror.store.url_of(source)}: missing in the store") from None
        except StorageError:
            # S3 refuses a range behind the end, as a backend refuses many other things
            if (size := mirror.store.stat(source).bytes) == entry.bytes:
                raise
            url = mirror.store.url_of(source)
            raise _wrong(mirror, unit, f"{url}: {size} bytes, the manifest says {entry.bytes}") from None
        with part.open("r+b") as stream:
            stream.seek(start)
            stream.write(data)
        progress.add(len(data))

    return [pool.submit(fetch, start) for start in range(0, entry.bytes, RANGE_BYTES)]


def _place(mirror: Mirror, unit: Unit, entry: FileEntry, part: Path) -> None:
    if (digest := sha256_file(part)) != entry.sha256:
        url = mirror.store.url_of(_object(mirror, unit, entry))
        raise _wrong(mirror, unit, f"{url}: SHA-256 {digest}, the manifest says {entry.sha256}")
    fsync_file(part)
    final = unit.root / entry.path
    final.parent.mkdir(parents=True, exist_ok=True)
    part.replace(final)


def _wrong(mirror: Mirror, unit: Unit, what: str) -> Exception:
    """Damage, unless the artifact was replaced while it was fetched."""
    file = unit.place if unit.place != unit.root else unit.root / MANIFEST
    path = f"{CATALOGUE}/{mirror.rel(file)}"
    try:
        now: Manifest | None = Manifest.model_validate_json(mirror.store.read(path))
    except (ObjectMissing, ValueError):
        now = None
    if now is None or names_of(now) != names_of(unit.manifest):
        return StorageError(f"{what}, since {mirror.rel(unit.place)} was replaced meanwhile; run it again.")
    return VerificationFailed(
        f"{what}\n{unit.place}: what was published is damaged. Delete {mirror.store.url_of(path)}, then run "
        "`pamp publish` where the artifact is whole, or materialise it again."
    )


def _object(mirror: Mirror, unit: Unit, entry: FileEntry) -> str:
    return f"{PAYLOAD}/{mirror.rel(unit.root / entry.path)}"
