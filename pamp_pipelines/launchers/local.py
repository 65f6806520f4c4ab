"""Workers as processes of this machine, each under a supervisor that ends with its parent."""

import contextlib
import datetime
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.sharing import share
from pamp_pipelines.launchers import supervisor
from pamp_pipelines.launchers.base import RUN_TOKEN, Handle, Status, WorkerSpec, read_handle, write_handle
from pamp_pipelines.launchers.environment import worker_command, worker_environment
from pamp_pipelines.launchers.logs import Failure, failure, main_log

ORPHAN_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL when the parent is gone and nobody waits any more."""

_MARGIN_S = 15.0


def processes_with(token: str) -> list[psutil.Process]:
    """Living processes that carry a run's token."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_leftovers(token: str) -> int:
    """SIGKILL what a supervisor that was itself killed left behind; returns how many there were."""
    left = processes_with(token)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=10)
    return len(left)


class LocalLauncher:
    """Implements ``Launcher``; a worker lives as long as the process that submitted it."""

    outlives_caller = False

    def __init__(self) -> None:
        self._started: dict[str, tuple[subprocess.Popen[bytes], int]] = {}

    def preview(self, spec: WorkerSpec) -> str:
        return shlex.join(worker_command(spec, "TOKEN", spec.run_dir / "logs" / "START"))

    def submit(self, spec: WorkerSpec) -> Handle:
        """Start the supervisor and, under it, the worker.

        Raises:
            InputError: the profile wants several machines.
        """
        if spec.profile.nodes > 1 and spec.processes is not None:
            raise InputError(
                f"a profile with `launcher: local` and `nodes: {spec.profile.nodes}` cannot run: "
                "local processes are on one machine; set `nodes: 1` or use another launcher"
            )
        if spec.tasks is not None:
            raise InputError(f"{spec.module} in {spec.tasks} tasks is an array job: use a profile of a cluster")
        token = secrets.token_hex(8)
        started = datetime.datetime.now(datetime.UTC)
        log_dir = spec.run_dir / "logs" / f"{started:%Y%m%dT%H%M%S}-{token[:4]}"
        log_dir.mkdir(parents=True)
        reader, writer = os.pipe()
        settings = {
            "command": worker_command(spec, token, log_dir),
            "status": str(log_dir / "status.json"),
            "parent": reader,
            "hold": list(spec.hold),
            "grace_s": spec.profile.grace_s,
            "orphan_grace_s": ORPHAN_GRACE_S,
        }
        try:
            with main_log(log_dir).open("wb") as output:
                share(spec.run_dir, log_dir.parent, log_dir, main_log(log_dir))
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(settings)],
                    env=worker_environment(spec, token),
                    cwd=spec.run_dir,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(reader, *spec.hold),
                )
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._started[token] = (process, writer)
        handle = Handle(
            launcher="local",
            token=token,
            host=socket.gethostname(),
            id=str(process.pid),
            submitted=started.isoformat(timespec="seconds"),
            log_dir=log_dir,
            details={"module": spec.module, "processes": spec.processes},
        )
        try:
            write_handle(spec.run_dir, handle)
        except BaseException:
            self.cancel(handle)
            raise
        return handle

    def poll(self, handle: Handle) -> Status:
        process, _ = self._started.get(handle.token, (None, None))
        if process is None:
            return Status(reason="running") if self._supervisor(handle) else self._final(handle, None)
        if process.poll() is None:
            return Status(reason="running")
        self._release(handle)
        return self._final(handle, process.returncode)

    def logs(self, handle: Handle, offset: int = 0) -> tuple[str, int]:
        try:
            with main_log(handle.log_dir).open("rb") as stream:
                stream.seek(offset)
                data = stream.read()
        except FileNotFoundError:
            return "", offset
        return data.decode(errors="replace"), offset + len(data)

    def failure(self, handle: Handle, lines: int) -> Failure:
        return failure(handle.log_dir, lines)

    def cancel(self, handle: Handle) -> Status:
        """SIGTERM to the supervisor, which gives the worker its grace. A second interrupt cuts that grace short."""
        process, _ = self._started.get(handle.token, (None, None))
        alive = self._supervisor(handle)
        if alive is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                alive.send_signal(signal.SIGTERM)
        try:
            while (status := self.poll(handle)).running:
                time.sleep(0.05)
        except BaseException:
            self._release(handle)  # end of file on the pipe: the supervisor ends the worker within ORPHAN_GRACE_S
            with contextlib.suppress(BaseException):
                if process is not None:
                    process.wait(ORPHAN_GRACE_S + _MARGIN_S)
            raise
        if process is None:
            kill_leftovers(handle.token)  # somebody else's worker: its supervisor may have been killed long ago
        return status

    def find(self, run_dir: Path) -> Handle | None:
        handle = read_handle(run_dir)
        if handle is None or handle.launcher != "local" or handle.host != socket.gethostname():
            return None
        return handle if self._supervisor(handle) or processes_with(handle.token) else None

    def _supervisor(self, handle: Handle) -> psutil.Process | None:
        """The supervisor's process; its token tells it from a stranger that was given the same process id."""
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(int(handle.id))
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(RUN_TOKEN) == handle.token:
                return process
        return None

    def _final(self, handle: Handle, return_code: int | None) -> Status:
        """What the supervisor wrote or, on a full disk, ended with; when it was killed, its worker is ended here."""
        try:
            return Status.model_validate_json((handle.log_dir / "status.json").read_bytes())
        except (OSError, ValueError):
            kill_leftovers(handle.token)
        if return_code is None or return_code < 0:
            return Status(reason="lost", exit_code=return_code)
        if return_code == supervisor.EXIT_CANCELED:
            return Status(reason="canceled")
        return Status(reason="exited", exit_code=return_code if return_code <= 128 else 128 - return_code)

    def _release(self, handle: Handle) -> None:
        _, writer = self._started.pop(handle.token, (None, None))
        if writer is not None:
            os.close(writer)
