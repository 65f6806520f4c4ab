"""Putting finished artifacts into the store of a remote lake: payload first, manifest last.

Does nothing in a local lake. What is published already costs one comparison of its manifest.
"""

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pamp_pipelines.errors import StorageError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.cache import Unit, trim
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.integrity import memory_of, require_intact
from pamp_pipelines.lake.leases import hold
from pamp_pipelines.lake.manifest import MANIFEST, FileEntry, Manifest
from pamp_pipelines.lake.mirror import CATALOGUE, LARGE, PAYLOAD, THREADS, Entry, Mirror, digest, mirror_of, names_of
from pamp_pipelines.lake.remote import Object, ObjectMissing
from pamp_pipelines.lake.staging import listener
from pamp_pipelines.lake.transfer import Transfer


def published(artifact: Artifact, on_event: OnEvent | None = None) -> Artifact:
    """The artifact, after making sure that the store has it.

    Args:
        artifact: finished, in any lake.
        on_event: gets ``progress`` with megabytes and their rate; default: who is `staging.listening`.

    Raises:
        StorageError, InputError: the store does not take it; what was uploaded is not uploaded again.
        VerificationFailed: its files are not what its manifest says.
    """
    if (mirror := mirror_of(artifact.path)) is not None:
        _publish(mirror, Unit(artifact.path, artifact.manifest), on_event or listener())
    return artifact


def publish_record(record: Path, on_event: OnEvent = ignore) -> None:
    """Put a kept checkpoint into the store, with the job and the metrics of its run, which may go on.

    Raises:
        As `published`.
    """
    if (mirror := mirror_of(record)) is None:
        return
    unit = Unit.read(record)
    for name in ("job.json", "metrics.jsonl"):
        _put_single(mirror, unit.root / name)
    _publish(mirror, unit, on_event)


def publish_single(file: Path) -> None:
    """Put a file that stands for itself into the catalogue. Raises as `published`; does nothing in a local lake."""
    if (mirror := mirror_of(file)) is not None:
        _put_single(mirror, file)


class Publisher:
    """Publishes records of kept checkpoints in a thread, one after another, while their run goes on.

    A failure is no failure of the run: whoever publishes the finished run tries all of its records again.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._jobs: list[Future[None]] = []

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, record: Path) -> None:
        """Does nothing in a local lake."""
        if mirror_of(record) is not None:
            self._jobs.append(self._pool.submit(publish_record, record))

    def problems(self) -> list[str]:
        """What failed since the last call."""
        done = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if job not in done]
        return [str(error) for job in done if not job.cancelled() and (error := job.exception()) is not None]


def is_published(path: Path) -> bool:
    """Whether the store has the artifact at ``path`` as it is; True in a local lake, which has no store."""
    mirror = mirror_of(path)
    return mirror is None or mirror.same_as_published(path / MANIFEST)


def publish_all(root: Path, on_event: OnEvent = ignore) -> list[Path]:
    """Put into the store whatever is finished in a lake and not there; returns the artifacts and records.

    Raises:
        As `published`, after trying all of them.
    """
    mirror = mirror_of(root)
    done: list[Path] = []
    failed: list[str] = []
    for file in _manifests(root) if mirror else ():
        assert mirror is not None
        try:
            if mirror.same_as_published(file):
                continue
            unit = Unit.read(file)
        except (OSError, ValueError) as error:
            on_event(event("warning", message=f"{file}: left out, not a readable manifest ({error})"))
            continue
        try:
            if unit.manifest.kind == "checkpoint":
                publish_record(file, on_event)
            else:
                _publish(mirror, unit, on_event)
        except StorageError as error:
            failed.append(str(error))
        else:
            done.append(unit.place)
    if failed:
        raise StorageError("\n".join(failed))
    return done


def _manifests(root: Path) -> Iterator[Path]:
    """Inputs come before what is made of them."""
    for folder in ("corpora", "shards", "checkpoints", "runs", "exports", "scores", "reports"):
        found = {*(root / folder).rglob(MANIFEST), *(root / folder).glob("*/*/v*/kept/[0-9]*.json")}
        for file in sorted(found, key=lambda file: (file.name == MANIFEST, file)):
            if not any(part.startswith(".") for part in file.relative_to(root).parts):
                yield file


def _publish(mirror: Mirror, unit: Unit, on_event: OnEvent) -> None:
    file = _manifest_file(unit)
    if mirror.same_as_published(file):
        return
    if unit.manifest.kind == "pretrained_checkpoint":
        for record in sorted((unit.root / "kept").glob("[0-9]*.json")):
            publish_record(record, on_event)  # no record may be seen before its checkpoint
    hold(unit.place)
    with mirror.locked(f"publish-{unit.manifest.id[:32]}.lock"):
        if not mirror.same_as_published(file):
            require_intact(unit.root, unit.manifest, memory_of(unit.place))
            _put(mirror, unit, file, on_event)
    with mirror.locked("cache.lock"):
        trim(mirror)


def _manifest_file(unit: Unit) -> Path:
    return unit.root / MANIFEST if unit.place == unit.root else unit.place


def _put(mirror: Mirror, unit: Unit, file: Path, on_event: OnEvent) -> None:
    store = mirror.store
    tree = PAYLOAD if unit.manifest.kind in LARGE else CATALOGUE
    name = f"{CATALOGUE}/{mirror.rel(file)}"
    complete = _complete(mirror, name, unit.manifest)
    confirmed = _Confirmed(mirror, unit, tree)
    if not complete:
        store.delete([name])
        _upload(mirror, unit, tree, confirmed, on_event)
        confirmed.require_all()
    data = file.read_bytes()
    store.write(name, data)
    here = {mirror.rel(file): _entry(file, store.stat(name), unit.manifest)}
    if tree == CATALOGUE:
        for entry in unit.manifest.files:
            path = mirror.rel(unit.root / entry.path)
            if path not in here and (found := confirmed.objects.get(entry.path)):
                known = mirror.entries().get(path)
                here[path] = Entry(token=found.token, sha256=entry.sha256, names=known.names if known else None)
    mirror.note(here)  # type: ignore[arg-type]
    confirmed.forget()


def _complete(mirror: Mirror, name: str, manifest: Manifest) -> bool:
    """Whether the store has the same files already, only under another manifest: one that was judged since."""
    try:
        there = Manifest.model_validate_json(mirror.store.read(name))
    except (ObjectMissing, ValueError):
        return False
    return manifest.kind in LARGE and names_of(there) == names_of(manifest) and there.files == manifest.files


class _Confirmed:
    """Objects that this working directory has put for an artifact, remembered so that a cut upload goes on."""

    def __init__(self, mirror: Mirror, unit: Unit, tree: str) -> None:
        self._mirror, self._unit = mirror, unit
        self._prefix = f"{tree}/{mirror.rel(unit.root)}"
        self._memory = unit.place.parent / f".{unit.place.name}.uploads.json"
        self._known = self._recall()
        self.objects = self._list()

    def has(self, entry: FileEntry) -> bool:
        """The object is the very one that was put there for this content."""
        found = self.objects.get(entry.path)
        return found is not None and self._known.get(entry.path) == [entry.sha256, found.token]

    def add(self, entry: FileEntry, put: Object) -> None:
        self.objects[entry.path] = put
        self._known[entry.path] = [entry.sha256, put.token]
        write_json(self._memory, self._known)

    def require_all(self) -> None:
        """Raises StorageError where an object is not there, or not as long as its file."""
        self.objects = self._list()
        for entry in self._unit.manifest.files:
            found = self.objects.get(entry.path)
            if found is None or found.bytes != entry.bytes:
                url = self._mirror.store.url_of(self.path(entry.path))
                raise StorageError(
                    f"{url}: was put there and {'is not there' if found is None else f'has {found.bytes} bytes'}; does "
                    "somebody else write or delete there? Run `pamp publish`."
                )

    def path(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def forget(self) -> None:
        self._memory.unlink(missing_ok=True)

    def _list(self) -> dict[str, Object]:
        return self._mirror.store.list(self._prefix)

    def _recall(self) -> dict[str, list[str]]:
        with contextlib.suppress(OSError, ValueError):
            if isinstance(found := json.loads(self._memory.read_text()), dict):
                return found
        return {}


def _upload(mirror: Mirror, unit: Unit, tree: str, confirmed: _Confirmed, on_event: OnEvent) -> None:
    store = mirror.store
    if unit.root == unit.place and unit.manifest.kind != "pretrained_checkpoint":
        named = {entry.path for entry in unit.manifest.files}
        store.delete(confirmed.path(name) for name in confirmed.objects if name not in named)
    missing = [entry for entry in unit.manifest.files if not confirmed.has(entry)]
    progress = Transfer(on_event, "publish", str(unit.place), sum(entry.bytes for entry in missing))

    def put(entry: FileEntry) -> tuple[FileEntry, Object]:
        store.upload(unit.root / entry.path, confirmed.path(entry.path), progress.add)
        return entry, store.stat(confirmed.path(entry.path))

    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(put, entry) for entry in missing]
        try:
            for job in jobs:
                progress.wait(job)
                confirmed.add(*job.result())
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
    progress.end()


def _put_single(mirror: Mirror, file: Path) -> None:
    """A file of a run that stands for itself in the catalogue."""
    if file.is_file() and not mirror.same_as_published(file):
        mirror.put(file)


def _entry(file: Path, put: Object, manifest: Manifest | None) -> Entry:
    return Entry(token=put.token, sha256=digest(file), names=names_of(manifest) if manifest else None)
