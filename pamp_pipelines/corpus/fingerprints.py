"""Hashes of source files: computed once, remembered until a file is written again, and checked before each reading."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import TypeAdapter

from pamp_pipelines.corpus.sources import Location, SourceFile, is_remote, open_source, stat_source
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.hashing import in_threads, sha256_stream
from pamp_pipelines.lake.remembered import recall, remember

_CACHE = TypeAdapter(dict[str, tuple[str, str]])
"""URL to (token of ``stat_source``, SHA-256)."""

_SETTLED_S = 2.0
"""A file written this shortly before it was hashed may change again within one tick of its time stamp."""


def fingerprint(locations: Iterable[Location], cache: Path | None = None) -> tuple[SourceFile, ...]:
    """Size and SHA-256 of each file.

    Args:
        locations: existing files.
        cache: JSON file with earlier hashes by URL; files whose size, time and inode (or ETag) are the same are not
            read again. Losing it costs time only.

    Raises:
        InputError: a file cannot be read.
    """
    known = _read_cache(cache)
    remembered: dict[str, tuple[str, str]] = {}
    files = []
    found = in_threads(lambda location, stopped: _fingerprint(location, known, stopped), locations)
    for file, token, settled in found:
        if settled:
            remembered[file.url] = (token, file.sha256)
        files.append(file)
    if cache is not None and remembered != known:
        # a lake that may only be read is still good for looking things up
        with contextlib.suppress(OSError):
            remember(cache, remembered)
    return tuple(files)


def _fingerprint(
    location: Location, known: dict[str, tuple[str, str]], stopped: threading.Event
) -> tuple[SourceFile, str, bool]:
    """The file, its token, and whether that will tell when it is written again."""
    started = time.time()
    with readable(location.name):
        size, token = stat_source(location.url)
        old_token, digest = known.get(location.url, ("", ""))
        if old_token != token:
            digest = _hash(location.url, stopped)
        status = None if is_remote(location.url) else Path(location.url).stat()
    settled = status is None or started - status.st_mtime > _SETTLED_S
    # stricter, since the file is not read again then: a time of last writing can be set to anything
    pinned = token if status is None or started - status.st_ctime > _SETTLED_S else ""
    return SourceFile(url=location.url, name=location.name, bytes=size, sha256=digest, token=pinned), token, settled


def remembered_tokens(cache: Path) -> dict[str, str]:
    """``stat_source`` tokens of the files whose content is known, by URL."""
    return {url: token for url, (token, _) in _read_cache(cache).items()}


def require_unchanged(file: SourceFile) -> str:
    """The file's ``stat_source`` token, after making sure that it has the pinned content.

    It is read again only when its token is not the one that it was pinned with.

    Raises:
        InputError: it changed, grew or disappeared; says that raw_corpus has to be made again.
    """
    with readable(file.name):
        size, token = stat_source(file.url)
        same = size == file.bytes and (token == file.token or _hash(file.url) == file.sha256)
    if not same:
        raise _changed(file, "is not what it was when the corpus was scanned")
    return token


@contextlib.contextmanager
def unwritten(file: SourceFile, token: str) -> Iterator[None]:
    """Read ``file`` inside the block only; its token must be the same afterwards.

    Raises:
        InputError: it was written meanwhile.
    """
    yield
    with readable(file.name):
        if stat_source(file.url)[1] != token:
            raise _changed(file, "was written while it was read")


@contextlib.contextmanager
def unchanged(file: SourceFile) -> Iterator[None]:
    """``require_unchanged``, then ``unwritten``."""
    with unwritten(file, require_unchanged(file)):
        yield


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn a failure to read ``name`` into a message about it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{name}: the file has disappeared; put it back or correct `sources`.") from None
    except (OSError, ImportError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from error


def _changed(file: SourceFile, what: str) -> InputError:
    return InputError(f"{file.name}: {what}. Materialise raw_corpus again, then whatever is made of it.")


def _hash(url: str, stopped: threading.Event | None = None) -> str:
    with open_source(url) as stream:
        return sha256_stream(stream, stopped)


def _read_cache(cache: Path | None) -> dict[str, tuple[str, str]]:
    if cache is None:
        return {}
    try:
        return _CACHE.validate_python(recall(cache))
    except ValueError:
        return {}
