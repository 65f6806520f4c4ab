"""The bond between a working directory and the store of a remote lake; for a local lake there is none.

The store has two trees, ``catalogue/`` and ``payload/``, each with the lake's own paths: docs/decisions/0010.
"""

import contextlib
import fcntl
import hashlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from pamp_pipelines.lake.atomic import write_bytes, write_text
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.remote import RemoteStore

CATALOGUE, PAYLOAD = "catalogue", "payload"
LARGE = frozenset({"tokenized_shards", "megatron_checkpoint", "hf_export", "checkpoint"})
"""Kinds whose files are payload; all of the others' lies in the catalogue."""
THREADS = 8

_PRIVATE = ".remote"


class Entry(BaseModel):
    """A file of the catalogue as it was when it was last the same here and in the store.

    ``token`` is empty for what is gone from the store and whole here: it may be published again, or replaced. ``names``
    is ``kind:id:content`` where it is a manifest.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    sha256: str
    names: str | None = None


_ENTRIES = TypeAdapter(dict[str, Entry])


@dataclass(frozen=True)
class Mirror:
    """A working directory, its store, and the bytes of payload that it may keep."""

    root: Path
    store: RemoteStore
    budget: int

    @cached_property
    def private(self) -> Path:
        """What belongs to this working directory alone."""
        folder = self.root / _PRIVATE
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @cached_property
    def home(self) -> str:
        """Name of this working directory, for the versions that it claims."""
        file = self.private / "home"
        with self.locked("home.lock"):
            if not file.is_file():
                write_text(file, uuid.uuid4().hex)
        return file.read_text()

    def rel(self, path: Path) -> str:
        return path.absolute().relative_to(self.root).as_posix()

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        with (self.private / name).open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def published(self, manifest: Manifest) -> bool:
        """Whether the store has this very artifact, with all of its files."""
        return names_of(manifest) in self._known()[1]

    def entries(self) -> dict[str, Entry]:
        """Files of the catalogue that are the same here and in the store, by path."""
        return dict(self._known()[0])

    def same_as_published(self, file: Path) -> bool:
        """Whether this file of the catalogue is the one that the store has."""
        entry = self._known()[0].get(self.rel(file))
        return entry is not None and bool(entry.token) and entry.sha256 == digest(file)

    def note(self, changed: Mapping[str, Entry | None]) -> None:
        """Remember that files are the same here and there, or (None) no longer are."""
        with self.locked("index.lock"):
            entries = {**_read(self._index), **changed}
            kept = {path: entry for path, entry in entries.items() if entry is not None}
            write_bytes(self._index, _ENTRIES.dump_json(kept))

    @property
    def _index(self) -> Path:
        return self.private / "index.json"

    def _known(self) -> tuple[dict[str, Entry], frozenset[str]]:
        """Entries, and the names of all published artifacts; read again when another process has changed them."""
        try:
            status = self._index.stat()
        except FileNotFoundError:
            return {}, frozenset()
        stamp = (status.st_mtime_ns, status.st_ino)
        remembered = self.__dict__.get("_memory")
        if remembered is None or remembered[0] != stamp:
            entries = _read(self._index)
            remembered = (stamp, entries, frozenset(e.names for e in entries.values() if e.names))
            self.__dict__["_memory"] = remembered
        return remembered[1], remembered[2]

    def claim(self, file: Path, data: bytes) -> bool:
        """Make a file here and in the catalogue that nobody has put there yet; False where somebody has.

        In the store first: one who is killed before it is there too gets it with the next refresh.
        """
        path = self.rel(file)
        if not self.store.create(f"{CATALOGUE}/{path}", data):
            return False
        write_bytes(file, data)
        self._note_put(path, data)
        return True

    def put(self, file: Path) -> None:
        """Put a file that stands for itself into the catalogue, as it is now: somebody may be writing to it."""
        path, data = self.rel(file), file.read_bytes()
        self.store.write(f"{CATALOGUE}/{path}", data)
        self._note_put(path, data)

    def _note_put(self, path: str, data: bytes) -> None:
        token = self.store.stat(f"{CATALOGUE}/{path}").token
        self.note({path: Entry(token=token, sha256=hashlib.sha256(data).hexdigest())})


_ATTACHED: dict[Path, Mirror] = {}


def attach(root: Path, url: str, budget: int) -> Mirror:
    """Bind a working directory to a store, for this process."""
    root = root.absolute()
    known = _ATTACHED.get(root)
    if known is None or (known.store.url, known.budget) != (url, budget):
        known = _ATTACHED[root] = Mirror(root, RemoteStore(url), budget)
    return known


def detach(root: Path) -> None:
    """Treat the lake as a local one again."""
    _ATTACHED.pop(root.absolute(), None)


def mirror_of(path: Path) -> Mirror | None:
    """The bond of the lake that a path lies in; None in a local lake."""
    if not _ATTACHED:
        return None
    absolute = path.absolute()
    return next((mirror for root, mirror in _ATTACHED.items() if absolute.is_relative_to(root)), None)


def uri_of(path: Path, kind: str) -> str | None:
    """Where the store has what lies at ``path``; None in a local lake."""
    if (mirror := mirror_of(path)) is None:
        return None
    return mirror.store.url_of(f"{PAYLOAD if kind in LARGE else CATALOGUE}/{mirror.rel(path)}")


def is_manifest(path: str) -> bool:
    """Whether a path of the catalogue is the manifest of an artifact or the record of a kept checkpoint."""
    parts = path.split("/")
    return parts[-1] == MANIFEST or (parts[0] == "runs" and parts[-2] == "kept")


def names_of(manifest: Manifest) -> str:
    return f"{manifest.kind}:{manifest.id}:{manifest.content}"


def digest(file: Path) -> str:
    """Of a file that may vanish."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def names_in(data: bytes) -> str | None:
    """Of a manifest's bytes; None where they are none: its reader says what is wrong with it."""
    try:
        return names_of(Manifest.model_validate_json(data))
    except ValueError:
        return None


def _read(index: Path) -> dict[str, Entry]:
    try:
        return _ENTRIES.validate_json(index.read_bytes())
    except (OSError, ValueError):
        return {}  # costs fetching the catalogue again
