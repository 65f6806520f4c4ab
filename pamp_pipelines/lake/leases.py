"""Who is reading what: a shared flock on ``.NAME.lease`` beside an artifact keeps a cache from removing it.

The kernel drops a lease with its holder. The time of the file says when the artifact was last used.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_HELD: list[dict[Path, IO[str]]] = [{}]
"""Leases of this process, by nested block; the first is never left."""


def lease_file(place: Path) -> Path:
    """Of the artifact, or the record of a checkpoint, at ``place``."""
    return place.parent / f".{place.name}.lease"


def hold(place: Path) -> None:
    """Lease until the innermost `leasing` block ends, or the process does; waits while it is being removed."""
    if any(place in held for held in _HELD):
        return
    stream = lease_file(place).open("a")
    fcntl.flock(stream, fcntl.LOCK_SH)
    os.utime(stream.fileno())
    _HELD[-1][place] = stream


@contextlib.contextmanager
def leasing() -> Iterator[None]:
    """Leases taken inside end with the block: for a process that does one thing after another."""
    _HELD.append({})
    try:
        yield
    finally:
        for stream in _HELD.pop().values():
            stream.close()


@contextlib.contextmanager
def unleased(place: Path) -> Iterator[bool]:
    """Whether nobody holds a lease; while it is so, nobody gets one inside the block."""
    with lease_file(place).open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def last_used(place: Path) -> float:
    """Seconds since the epoch; of one that was never leased, when it came."""
    for file in (lease_file(place), place):
        with contextlib.suppress(FileNotFoundError):
            return file.stat().st_mtime
    return 0.0
