"""One writer per version directory."""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.publish import utc_now
from pamp_pipelines.lake.sharing import share

LEASE = ".lease"
HEARTBEAT_S = 5.0
_BEATS = 4
"""Heartbeats without which a holder on another machine counts as dead: attribute caches of NFS show a touch late."""
_LIVING_S, _ENDING_S = 1.0, 20.0
"""Seconds to wait for a lease whose holder lives, and for one whose holder is dead."""


class LeaseTaken(PampError):
    """Another process trains this version."""


@contextlib.contextmanager
def lease(run_dir: Path) -> Iterator[int]:
    """Hold the right to write to ``run_dir``; yields the descriptor of the lock.

    The lock is an flock: the kernel drops it when the last process that holds the descriptor is gone. The worker's
    supervisor is given it too, so that after a ``kill -9`` of the caller nobody else starts while old ranks still run.

    On shared file systems an flock may hold on one machine only (Lustre with ``localflock``, old NFS). There the
    heartbeat counts: the holder touches the file every ``HEARTBEAT_S``, and who comes from another machine first
    watches whether it is touched. No two clocks are compared.

    Raises:
        LeaseTaken: names host, process and time of the holder.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    share(run_dir, *run_dir.parents[:3])  # runs/<model>/<training config>
    with (run_dir / LEASE).open("a+") as stream:
        _lock(stream, run_dir)
        taken_over = _watch_other_machine(run_dir)
        stream.truncate(0)
        mine = {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "since": utc_now()}
        stream.write(json.dumps(mine) + "\n")
        stream.flush()
        if taken_over:
            _settle(run_dir, mine)
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(stream.fileno(), ended), name="lease", daemon=True)
        heart.start()
        try:
            yield stream.fileno()
        finally:
            ended.set()
            heart.join()
            with contextlib.suppress(OSError):
                stream.truncate(0)  # released: the next one need not watch


def _beat(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):  # a file server that is away for a while; the next beat may reach it
            os.utime(descriptor)


def _boot() -> str:
    """Of this machine's kernel: tells machines of one name apart, and a machine from itself before it was restarted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _here(holder: dict[str, Any]) -> bool:
    return bool(holder["host"] == socket.gethostname() and holder.get("boot", "") in ("", _boot()))


def _settle(run_dir: Path, mine: dict[str, Any]) -> None:
    """Of several machines that watched the same dead holder, the last to write its name has the lease."""
    time.sleep(HEARTBEAT_S)
    holder = _holder(run_dir)
    if holder != mine:
        raise LeaseTaken(_taken(run_dir, holder))


def _watch_other_machine(run_dir: Path) -> bool:
    """Refuse while a holder on another machine is alive, although this machine's kernel gave us the lock.

    Returns:
        Whether there was such a holder, which is dead.
    """
    holder = _holder(run_dir)
    if holder is None or _here(holder):
        return False
    file = run_dir / LEASE
    before = file.stat().st_mtime_ns
    deadline = time.monotonic() + _BEATS * HEARTBEAT_S
    while time.monotonic() < deadline:
        if file.stat().st_mtime_ns != before:
            raise LeaseTaken(_taken(run_dir, holder))
        time.sleep(min(1.0, HEARTBEAT_S / 4))
    return True


def _taken(run_dir: Path, holder: dict[str, Any] | None) -> str:
    who = f"process {holder['pid']} on {holder['host']} (since {holder['since']})" if holder else "another"
    return f"{run_dir}: {who} trains this version; wait for it, or end it."


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
                raise LeaseTaken(_taken(run_dir, holder)) from None
        time.sleep(0.2)


def _holder(run_dir: Path) -> dict[str, Any] | None:
    try:
        holder = json.loads((run_dir / LEASE).read_text())
    except (OSError, ValueError):
        return None  # it has taken the lock and not written its name yet
    return holder if isinstance(holder, dict) and {"pid", "host", "since"} <= holder.keys() else None


def _alive(holder: dict[str, Any] | None) -> bool:
    """Whether the holder lives, as far as can be seen from here: another host's process counts as alive."""
    if holder is None or not _here(holder):
        return holder is not None
    try:
        return bool(psutil.Process(holder["pid"]).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
