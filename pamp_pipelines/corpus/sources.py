"""Finding the files of a corpus: paths, folders, globs and fsspec URLs."""

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.remote import ObjectMissing, filesystem, reaching
from pamp_pipelines.text import require_text
from pamp_pipelines.urls import is_url, redacted, require_no_credentials

_GLOB = re.compile(r"[*?\[]")


class Location(NamedTuple):
    """A file that exists. ``url`` opens it, ``name`` is for people: relative to the root when below it."""

    url: str
    name: str


class SourceFile(BaseModel):
    """A file of a corpus, pinned to its content.

    Attributes:
        url: absolute path or fsspec URL.
        token: what ``stat_source`` gave for this content; empty when the file was too new to tell by that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    name: str
    bytes: int
    sha256: str
    token: str = ""


def is_remote(url: str) -> bool:
    """True for an fsspec URL (``s3://…``); local paths are opened without fsspec."""
    return is_url(url)


def expand(sources: Sequence[str], root: Path) -> list[Location]:
    """All files of ``sources``: sources in the given order, the files of a folder or glob sorted, each file once.

    A folder stands for every file below it. Names that start with a dot are left out of folders and globs, since
    half-written files are called so. Links to folders are not followed: they can form loops.

    Args:
        sources: paths, folders, globs or fsspec URLs; relative paths start at ``root``.
        root: folder that relative paths start at and that names are relative to.

    Raises:
        InputError: lists every source without a file; a URL holds credentials; a file's name is not UTF-8.
    """
    for source in sources:
        require_no_credentials(source, "source")
    found: dict[str, Location] = {}
    empty: list[str] = []
    for source in sources:
        files = _expand_remote(source) if _is_foreign(source) else _expand_local(_local_path(source, root), root)
        if not files:
            empty.append(source)
        for location in files:
            require_text(location.url)
            identity = location.url if is_remote(location.url) else os.path.realpath(location.url)
            found.setdefault(identity, location)
    if empty:
        raise InputError(
            "\n".join(f"source {redacted(source)!r}: {_nothing_there(source, root)}" for source in empty)
            + "\nCorrect `sources` or put the files there."
        )
    return list(found.values())


def _nothing_there(source: str, root: Path) -> str:
    if not _is_foreign(source):
        return f"no such file, or no file matches (relative to {root})"
    return "no such object, or no object matches" if _has_glob(source) else "there is no such object"


def _has_glob(url: str) -> bool:
    """Whether a URL is a pattern; in one of the web, what follows ``?`` is a query."""
    if _is_web(url):
        return any(_GLOB.search(part) for part in url.partition("?")[0].split("/")[3:])
    return _GLOB.search(url) is not None


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _is_foreign(source: str) -> bool:
    return is_remote(source) and not source.startswith("file://")


def _local_path(source: str, root: Path) -> Path:
    return Path(os.path.normpath(root / Path(source.removeprefix("file://")).expanduser()))


def _expand_local(path: Path, root: Path) -> list[Location]:
    if path.is_dir():
        files = _visible(path, path.glob("**/*"))
    elif path.exists() or not _GLOB.search(str(path)):
        # a file name may hold glob characters, so an existing path always means itself
        files = [path] if path.is_file() else []
    else:
        parts = path.parts
        first = next(i for i, part in enumerate(parts) if _GLOB.search(part))
        base = Path(*parts[:first])
        matches = list(base.glob(str(Path(*parts[first:]))))
        # as a shell would expand the pattern: a folder that it matches stands for the files below it
        folders = [match for match in matches if match.is_dir() and not match.is_symlink()]
        files = _visible(base, {*matches, *(file for folder in folders for file in folder.glob("**/*"))})
    return [Location(str(file), _name(file, root)) for file in files]


def _visible(base: Path, files: Iterable[Path]) -> list[Path]:
    return sorted(f for f in files if f.is_file() and not any(p.startswith(".") for p in f.relative_to(base).parts))


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)


def _expand_remote(url: str) -> list[Location]:
    try:
        with reaching(url):
            store = filesystem(url)
            path = store._strip_protocol(url)
            if _has_glob(url):
                found = store.glob(path, detail=True)
            elif store.isdir(path):
                found = store.find(path, detail=True)
            else:
                found = {path: store.info(path)} if store.isfile(path) else {}
            urls = [store.unstrip_protocol(p) for p, info in sorted(found.items()) if info["type"] == "file"]
    except InputError as error:
        raise InputError(f"source {redacted(url)!r}: cannot be listed: {error}") from None
    # the suffix, by which a file is read, stands before a query
    named = [Location(u, u.partition("?")[0] if _is_web(u) else u) for u in urls]
    return [location for location in named if not location.name.rsplit("/", 1)[1].startswith(".")]


def open_source(url: str) -> BinaryIO:
    """The file's bytes as they are stored. Seekable for local files and for most fsspec filesystems.

    Raises:
        FileNotFoundError: it is not there.
        StorageError, InputError: the store of a URL does not answer, or refuses; also while the stream is read.
    """
    if not is_remote(url):
        return Path(url).open("rb")
    return cast(BinaryIO, _RemoteFile(url))


def stat_source(url: str) -> tuple[int, str]:
    """Size in bytes, and a token that changes when the file is written again (time, inode, ETag …)."""
    if not is_remote(url):
        status = Path(url).stat()
        return status.st_size, f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
    with _found(url):
        store = filesystem(url)
        path = store._strip_protocol(url)
        store.invalidate_cache()
        return int(store.size(path)), str(store.ukey(path))


@contextlib.contextmanager
def _found(url: str) -> Iterator[None]:
    """`reaching`, with what is missing as for a local file."""
    try:
        with reaching(url):
            yield
    except ObjectMissing as error:
        raise FileNotFoundError(str(error)) from None


class _RemoteFile(io.RawIOBase):
    """An object that is read in ranges, as far as the backend can; its failures are those of `remote.reaching`."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _found(url):
            store = filesystem(url)
            self._file = store.open(store._strip_protocol(url), "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with _found(self._url):
            return int(self._file.seek(offset, whence))

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]
        with _found(self._url):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
