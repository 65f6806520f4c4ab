"""Workers as jobs of a Slurm cluster whose nodes share the lake's file system with this machine."""

import contextlib
import datetime
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.errors import LauncherError, PampError
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.sharing import share
from pamp_pipelines.launchers import slurm_commands as slurm
from pamp_pipelines.launchers.base import EVENTS, Handle, Status, WorkerSpec, read_handle, size_of, write_handle
from pamp_pipelines.launchers.logs import Failure, failure_of_nodes, last_lines
from pamp_pipelines.launchers.slurm_commands import QUEUED, JobState, Unreachable
from pamp_pipelines.launchers.slurm_script import CANCEL, EXIT, batch_script

VANISHED_S = 60.0
"""Seconds after which a job that Slurm does not know and that left no exit file counts as lost: file systems of
clusters show a new file late."""
_KILL_WAIT_S = 60.0
"""Seconds that Slurm gets to end a job that was killed; its own KillWait is 30 by default."""
_SUBMIT_S = 5.0
"""Seconds after which a job whose submission was interrupted is not looked for any more."""
_START_S = 10.0
"""Seconds for a job that has its nodes to start the worker on them."""
_SHELL_S = 10.0
"""Seconds for the batch shell to end after its worker was killed."""
_PAUSE_S = 0.5

_PREEMPTED = frozenset({"PREEMPTED", "TIMEOUT", "DEADLINE"})
_INFRASTRUCTURE = frozenset({"NODE_FAIL", "BOOT_FAIL", "REVOKED"})
_LAUNCH_FAILED = "JobLaunchFailure"
"""Reason of a job whose processes a node lost or could not start."""


class _Exit(BaseModel):
    """What the batch shell wrote at its end."""

    model_config = ConfigDict(frozen=True)

    exit_code: int
    """Of srun; 128 + n for signal n."""
    stopped: str = ""
    """Signal that the batch shell got from Slurm."""
    restarts: int = 0


@dataclass
class _Seen:
    """The controller's last answer about a job, or that there was none."""

    at: float
    state: JobState | None
    unreachable: Unreachable | None = None


class SlurmLauncher:
    """Implements ``Launcher`` with sbatch, squeue, scancel and, where there is one, sacct."""

    outlives_caller = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._missing_since: dict[str, float] = {}

    def preview(self, spec: WorkerSpec) -> str:
        return batch_script(spec, "TOKEN", spec.run_dir / "logs" / "START", _name(spec.run_dir, "TOKEN"))

    def submit(self, spec: WorkerSpec) -> Handle:
        """Submit the job. Its handle is stored before: when this process dies in between, `find` knows the job's name.

        Raises:
            InputError: Slurm refuses the job, or a value of the profile cannot be passed to it.
            LauncherError: no Slurm here, or its controller does not answer.
        """
        token = secrets.token_hex(8)
        now = datetime.datetime.now(datetime.UTC)
        log_dir = spec.run_dir / "logs" / f"{now:%Y%m%dT%H%M%S}-{token[:4]}"
        name = _name(spec.run_dir, token)
        script = batch_script(spec, token, log_dir, name)
        log_dir.mkdir(parents=True)
        share(spec.run_dir, log_dir.parent, log_dir)
        write_text(log_dir / "job.sh", script)
        details: dict[str, Any] = {
            "name": name,
            "module": spec.module,
            "processes": spec.processes,
            "tasks": spec.tasks,
            "job_sha256": sha256_file(spec.job),
            "grace_s": spec.profile.grace_s,
            "events_offset": size_of(spec.run_dir / EVENTS),
            "poll_s": spec.profile.slurm.poll_s,
        }
        handle = Handle(
            launcher="slurm",
            token=token,
            host=socket.gethostname(),
            id="",
            submitted=now.isoformat(timespec="seconds"),
            log_dir=log_dir,
            details=details,
        )
        write_handle(spec.run_dir, handle)
        try:
            handle = handle.model_copy(update={"id": self._submit(log_dir / "job.sh", name)})
            write_handle(spec.run_dir, handle)
        except PampError:
            raise  # refused; or not known to be taken: the next attempt finds it by its name
        except BaseException:
            self._withdraw(handle)
            raise
        return handle

    def _submit(self, script: Path, name: str) -> str:
        try:
            return slurm.submit(script)
        except Unreachable:
            # the answer may have been lost on its way back
            with contextlib.suppress(LauncherError):
                if job := slurm.find_by_name(name):
                    return job
            raise

    def _withdraw(self, handle: Handle) -> None:
        """End the job of a submission that was interrupted: sbatch may have handed it in, or do so in a moment."""
        with contextlib.suppress(OSError):
            write_text(handle.log_dir / CANCEL, "")  # one that comes later than this function waits ends itself
        deadline = self._clock() + _SUBMIT_S
        while True:
            with contextlib.suppress(LauncherError):
                if job := slurm.find_by_name(handle.details["name"]):
                    self.cancel(handle.model_copy(update={"id": job}))
                    return
            if self._clock() >= deadline:
                return
            time.sleep(_PAUSE_S)

    def poll(self, handle: Handle) -> Status:
        """Asks the controller every ``poll_s`` seconds, at once when the job's exit file is there.

        While the controller does not answer the job counts as running: it does run on without it.
        """
        ended = _exit_of_all(handle)
        try:
            state = self._state(handle, fresh=ended is not None)
        except Unreachable as error:
            return Status(reason="running", detail=str(error))
        if state is not None and state.active:
            self._missing_since.pop(handle.id, None)
            return Status(reason="queued" if state.state in QUEUED else "running", detail=str(state))
        if ended is None and state is None:
            since = self._missing_since.setdefault(handle.id, self._clock())
            if self._clock() - since < VANISHED_S:
                return Status(reason="running", detail="unknown to Slurm")
        return _final(handle, state, _exit_of_all(handle))

    def logs(self, handle: Handle, offset: int = 0) -> tuple[str, int]:
        """Text of the first node's log, of the first task of several. Those of a requeued job follow each other."""
        data = b""
        begin = 0
        for file in [start / "node0" / "worker.log" for start in _starts(_folders(handle)[0])]:
            with contextlib.suppress(FileNotFoundError), file.open("rb") as stream:
                size = stream.seek(0, 2)
                if offset < begin + size:
                    stream.seek(max(0, offset - begin))
                    data += stream.read()
                begin += size
        return data.decode(errors="replace"), offset + len(data)

    def failure(self, handle: Handle, lines: int) -> Failure:
        """Of an array: the first task that did not end well."""
        folders = _folders(handle)
        number = next((n for n, folder in enumerate(folders) if (end := _exit(folder)) is None or end.exit_code), 0)
        starts = _starts(folders[number])
        processes = handle.details.get("processes")
        found = failure_of_nodes(starts[-1], processes, lines) if starts else None
        if found is None or (found.rank is None and not found.lines):
            batch = "batch.log" if handle.details.get("tasks") is None else f"batch-{number}.log"
            found = Failure(None, None, last_lines(handle.log_dir / batch, lines))
        return found if handle.details.get("tasks") is None else replace(found, task=number)

    def cancel(self, handle: Handle) -> Status:
        """SIGTERM to all ranks, the grace time, then the end of the job; waits until Slurm says that it is gone."""
        with contextlib.suppress(OSError):
            write_text(handle.log_dir / CANCEL, "")
        slurm.cancel_pending(handle.id)
        status = self._wait_for_step(handle, _START_S)
        if status.running:
            slurm.terminate(handle.id)
            status = self._wait(handle, float(handle.details["grace_s"]))
        if status.running:
            slurm.kill_now(handle.id)
            status = self._wait(handle, _SHELL_S)
        if status.running:
            slurm.kill(handle.id)
            status = self._wait(handle, _KILL_WAIT_S)
        if status.running:
            raise LauncherError(
                f"Slurm job {handle.id} is still {status.detail or 'there'} {_KILL_WAIT_S:g} s after scancel; "
                f"end it with `scancel {handle.id}` before the next attempt"
            )
        return status

    def find(self, run_dir: Path) -> Handle | None:
        """The job of ``run_dir`` that is queued or runs.

        Raises:
            Unreachable: the controller does not answer, so that a second job could be started beside a first one.
        """
        handle = read_handle(run_dir)
        if handle is None or handle.launcher != "slurm":
            return None
        if not handle.id:  # its submitter died before it learnt the number
            job = slurm.find_by_name(str(handle.details["name"]))
            if job is None:
                return None
            handle = handle.model_copy(update={"id": job})
            write_handle(run_dir, handle)
        state = slurm.job_state(handle.id, handle.details["name"])
        return handle if state is not None and state.active else None

    def _wait_for_step(self, handle: Handle, seconds: float) -> Status:
        """Until the worker is there to be signalled; a job that has not come so far sees the cancel file itself."""
        deadline = self._clock() + seconds
        while (status := self._poll_now(handle)).running and not slurm.has_step(handle.id) and self._clock() < deadline:
            time.sleep(_PAUSE_S)
        return status

    def _wait(self, handle: Handle, seconds: float) -> Status:
        """Poll until the end, or for ``seconds``."""
        deadline = self._clock() + seconds
        while (status := self._poll_now(handle)).running and self._clock() < deadline:
            time.sleep(_PAUSE_S)
        return status

    def _poll_now(self, handle: Handle) -> Status:
        self._seen.pop(handle.id, None)
        return self.poll(handle)

    def _state(self, handle: Handle, *, fresh: bool) -> JobState | None:
        now = self._clock()
        seen = self._seen.get(handle.id)
        limit = min(1.0, handle.details["poll_s"]) if fresh else handle.details["poll_s"]
        if seen is None or now - seen.at >= limit:
            seen = self._seen[handle.id] = self._ask(handle)
        if seen.unreachable is not None:
            raise seen.unreachable
        return seen.state

    def _ask(self, handle: Handle) -> _Seen:
        """An unanswered question is remembered as well: it takes long, and the worker's events must not wait for it."""
        try:
            state, error = slurm.job_state(handle.id, handle.details["name"]), None
        except Unreachable as unreachable:
            state, error = None, unreachable
        return _Seen(self._clock(), state, error)


def _name(run_dir: Path, token: str) -> str:
    """Of the job: unique, and squeue shows people what it is."""
    return f"pamp-{token}-" + re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(run_dir.parts[-3:]))[:60]


def _folders(handle: Handle) -> list[Path]:
    """Of a job's logs and its exit file; an array has one for each task."""
    tasks = handle.details.get("tasks")
    return [handle.log_dir] if tasks is None else [handle.log_dir / f"task{task}" for task in range(tasks)]


def _starts(folder: Path) -> list[Path]:
    """Log folders of the job's starts, oldest first."""
    numbered = [d for d in folder.glob("start*") if d.name.removeprefix("start").isdecimal()]
    return sorted(numbered, key=lambda d: int(d.name.removeprefix("start")))


def _exit(folder: Path) -> _Exit | None:
    try:
        return _Exit.model_validate_json((folder / EXIT).read_bytes())
    except (OSError, ValueError):
        return None


def _exit_of_all(handle: Handle) -> _Exit | None:
    """The first bad one of an array, else the last; None before all have ended."""
    ends = [end for folder in _folders(handle) if (end := _exit(folder)) is not None]
    if len(ends) < len(_folders(handle)):
        return None
    return next((end for end in ends if end.exit_code), ends[-1])


def _final(handle: Handle, state: JobState | None, ended: _Exit | None) -> Status:
    """Why a job that is no longer active ended, by Slurm's word and the batch shell's."""
    said = f"Slurm job {handle.id}: {state}" if state else f"Slurm job {handle.id}"
    name = state.state if state else ""
    code = None if ended is None else ended.exit_code if ended.exit_code <= 128 else 128 - ended.exit_code
    if code == 0:
        return Status(reason="exited", exit_code=0)
    if (handle.log_dir / CANCEL).exists() or name == "CANCELLED":
        return Status(reason="canceled", exit_code=code, detail=said)
    if name in _INFRASTRUCTURE or (state is not None and state.reason == _LAUNCH_FAILED):
        return Status(reason="infrastructure", exit_code=code, detail=said)
    if name in _PREEMPTED or (ended is not None and ended.stopped):
        return Status(reason="preempted", exit_code=code, detail=said)
    if ended is None:
        gone = f"{said} is gone and left no exit status" if state is None else said
        return Status(reason="lost", detail=gone)
    return Status(reason="exited", exit_code=code, detail=said)
