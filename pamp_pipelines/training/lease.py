"""One writer per version directory."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.publish import utc_now

LEASE = ".lease"
_LIVING_S, _ENDING_S = 1.0, 20.0
"""Seconds to wait for a lease whose holder lives, and for one whose holder is dead."""


class LeaseTaken(PampError):
    """Another process trains this version."""


@contextlib.contextmanager
def lease(run_dir: Path) -> Iterator[int]:
    """Hold the right to write to ``run_dir``; yields the descriptor of the lock.

    The lock is an flock: the kernel drops it when the last process that holds the descriptor is gone. The worker's
    supervisor is given it too, so that after a ``kill -9`` of the caller nobody else starts while old ranks still run.

    Raises:
        LeaseTaken: names host, process and time of the holder.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / LEASE).open("a+") as stream:
        _lock(stream, run_dir)
        stream.truncate(0)
        stream.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": utc_now()}) + "\n")
        stream.flush()
        yield stream.fileno()


def _lock(stream: IO[str], run_dir: Path) -> None:
    start = time.monotonic()
    while True:
        try:
            return fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(run_dir)
            # a dead holder's ranks are being ended by their supervisor right now, and a holder that was killed an
            # instant ago still looks alive
            if time.monotonic() - start > (_LIVING_S if _alive(holder) else _ENDING_S):
                who = f"process {holder['pid']} on {holder['host']} (since {holder['since']})" if holder else "another"
                raise LeaseTaken(f"{run_dir}: {who} trains this version; wait for it, or end it.") from None
        time.sleep(0.2)


def _holder(run_dir: Path) -> dict[str, Any] | None:
    try:
        holder = json.loads((run_dir / LEASE).read_text())
    except (OSError, ValueError):
        return None  # it has taken the lock and not written its name yet
    return holder if isinstance(holder, dict) and {"pid", "host", "since"} <= holder.keys() else None


def _alive(holder: dict[str, Any] | None) -> bool:
    """Whether the holder lives, as far as can be seen from here: another host's process counts as alive."""
    if holder is None or holder["host"] != socket.gethostname():
        return holder is not None
    try:
        return bool(psutil.Process(holder["pid"]).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
