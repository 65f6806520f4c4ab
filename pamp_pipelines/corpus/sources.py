"""Finding the files of a corpus: paths, folders, globs and fsspec URLs."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.errors import InputError

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
    return "://" in url


def expand(sources: Iterable[str], root: Path) -> list[Location]:
    """All files of ``sources``: sources in the given order, the files of a folder or glob sorted, each file once.

    A folder stands for every file below it. Names that start with a dot are left out of folders and globs, since
    half-written files are called so. Links to folders are not followed: they can form loops.

    Args:
        sources: paths, folders, globs or fsspec URLs; relative paths start at ``root``.
        root: folder that relative paths start at and that names are relative to.

    Raises:
        InputError: lists every source without a file.
    """
    found: dict[str, Location] = {}
    empty: list[str] = []
    for source in sources:
        files = _expand_remote(source) if _is_foreign(source) else _expand_local(_local_path(source, root), root)
        if not files:
            empty.append(source)
        for location in files:
            identity = location.url if is_remote(location.url) else os.path.realpath(location.url)
            found.setdefault(identity, location)
    if empty:
        raise InputError(
            "\n".join(f"source {source!r}: no such file, or no file matches (relative to {root})" for source in empty)
            + "\nCorrect `sources` or put the files there."
        )
    return list(found.values())


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
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
        if _GLOB.search(path):
            paths = filesystem.glob(path)
        elif filesystem.isdir(path):
            paths = filesystem.find(path)
        else:
            paths = [path] if filesystem.isfile(path) else []
        urls = [filesystem.unstrip_protocol(p) for p in sorted(paths) if filesystem.isfile(p)]
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"source {url!r}: cannot be listed: {error}") from error
    return [Location(u, u) for u in urls if not u.rsplit("/", 1)[1].startswith(".")]


def open_source(url: str) -> BinaryIO:
    """The file's bytes as they are stored. Seekable for local files and for most fsspec filesystems."""
    if not is_remote(url):
        return Path(url).open("rb")
    import fsspec

    return cast(BinaryIO, fsspec.open(url, "rb").open())


def stat_source(url: str) -> tuple[int, str]:
    """Size in bytes, and a token that changes when the file is written again (time, inode, ETag …)."""
    if not is_remote(url):
        status = Path(url).stat()
        return status.st_size, f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    return int(filesystem.size(path)), str(filesystem.ukey(path))
