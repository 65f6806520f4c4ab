"""What a training writes itself, in the stdout and stderr tabs of its run.

The event log gets one line for each log interval (``events.Reporter``); Dagster keeps a process's own output in files
beside it, and shows those in tabs. The first rank's is enough there: that of all ranks is in the version's ``logs/``.
"""

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from pamp_pipelines.lake.events import ignore
from pamp_pipelines.orchestration.events import listener

POLL_S = 5.0
"""Each look walks the folder of logs, which a large run has on a shared file system, a file for each rank."""
_CHUNK_BYTES = 1 << 20

_FIRST_RANK = re.compile(r"(?!.*/node[1-9])(.*/)?(worker\.log|0/(?P<stream>stdout|stderr)\.log)")
"""Of torchrun's agent or of a worker of one process; of the rank 0 of a node that is no other than the first."""


@contextlib.contextmanager
def following(logs: Path) -> Iterator[None]:
    """Meanwhile, copy what is written below ``logs`` to this process's own output, which Dagster keeps.

    Files that are there already are followed from their end: an earlier run has shown them. Where a command line shows
    the progress of the run, nothing is copied.
    """
    if listener.get() is not ignore:
        yield
        return
    offsets: dict[Path, int] = {}
    with contextlib.suppress(OSError):
        offsets |= {file: file.stat().st_size for file in _files(logs)}
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(logs, offsets, ended), name="compute logs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _copy(logs, offsets)


def _follow(logs: Path, offsets: dict[Path, int], ended: threading.Event) -> None:
    while not ended.wait(POLL_S):
        _copy(logs, offsets)


def _copy(logs: Path, offsets: dict[Path, int]) -> None:
    """Never raises OSError: a file server that is away, or a full disk of Dagster's, must not fail a training."""
    with contextlib.suppress(OSError):
        for file in _files(logs):
            target = sys.stdout if file.stem == "stdout" else sys.stderr
            with file.open("rb") as stream:
                stream.seek(offsets.get(file, 0))
                while chunk := stream.read(_CHUNK_BYTES):
                    target.buffer.write(chunk)
                    offsets[file] = stream.tell()
            target.flush()


def _files(logs: Path) -> list[Path]:
    found = (file for file in logs.rglob("*.log") if _FIRST_RANK.fullmatch(file.relative_to(logs).as_posix()))
    return sorted(found)
