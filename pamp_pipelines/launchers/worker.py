"""Run one worker to its end: start it, hand on its events, watch it, end it when anything goes wrong."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import (
    DiskFull,
    InfrastructureFailed,
    InputError,
    LauncherError,
    WorkerCanceled,
    WorkerFailed,
    WorkerPreempted,
)
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import Event, OnEvent, event, ignore, read_events
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.launchers.base import (
    EVENTS,
    HANDLE,
    Handle,
    Launcher,
    Status,
    WorkerSpec,
    event_logs,
    read_handle,
    size_of,
)
from pamp_pipelines.launchers.disk import EXIT_NO_SPACE, is_full, says_no_space
from pamp_pipelines.launchers.kubernetes import KubernetesLauncher
from pamp_pipelines.launchers.local import LocalLauncher
from pamp_pipelines.launchers.slurm import SlurmLauncher

_HANDED_ON = "handed_on"
"""Beside a worker's logs: bytes of the event log that its caller has handed on."""
_LAUNCHERS: Mapping[str, Callable[[], Launcher]] = {
    "local": LocalLauncher,
    "slurm": SlurmLauncher,
    "kubernetes": KubernetesLauncher,
}
_POLL_S = 0.1
_LAST_LINES = 30


@dataclass
class _Tail:
    """Hands events on as they appear; remembers when the last one came and what a ``failed`` one said."""

    path: Path
    on_event: OnEvent
    offset: int
    mark: Path | None = None
    """Where the offset is written, for a caller that takes over."""
    seen: float = field(default_factory=time.monotonic)
    complaint: str = ""

    def read(self) -> None:
        events, offset = read_events(self.path, self.offset)
        for one in events:
            self._see(one)
        if offset != self.offset and self.mark is not None:
            write_text(self.mark, str(offset))
        self.offset = offset

    def _see(self, event: Event) -> None:
        if event.kind == "failed":
            self.complaint = str(event.data.get("message") or event.data.get("reason") or "")
        self.on_event(event)
        self.seen = time.monotonic()  # the time that on_event took is not the worker's


def launcher_for(profile: ComputeProfile) -> Launcher:
    """The launcher a profile names."""
    return _LAUNCHERS[profile.launcher]()


def find_worker(run_dir: Path) -> tuple[Launcher, Handle] | None:
    """The worker of ``run_dir`` that is alive or queued, whatever started it, and its launcher.

    Raises:
        LauncherError: a cluster that would know does not answer.
    """
    stored = read_handle(run_dir)
    if stored is None:
        return None
    launcher = _LAUNCHERS[stored.launcher]()
    try:
        handle = launcher.find(run_dir)
    except (LauncherError, InputError) as error:  # a token that ran out is no proof that the worker is gone
        hint = f"it may still run {stored.launcher} worker {stored.id}; if that is gone for good, delete this file"
        raise LauncherError(f"{run_dir / HANDLE}: {hint}. {error}") from error
    return (launcher, handle) if handle else None


def run_worker(
    module: str,
    job: Path,
    run_dir: Path,
    *,
    nproc: int | None = None,
    profile: ComputeProfile | None = None,
    on_event: OnEvent = ignore,
    env: Mapping[str, str] | None = None,
    hold: Sequence[int] = (),
    tasks: int | None = None,
    before_restart: str | None = None,
) -> None:
    """Run ``python -m module JOB`` and return when it ended well.

    On a cluster the worker outlives this process when that is killed: called again with the same job, this function
    finds it and goes on watching, from the first event that was not handed on.

    Its output goes to ``run_dir/logs/``; lines that it appends to ``run_dir/events.jsonl`` go to ``on_event`` as they
    come. Whatever ends this function, an interrupt or an error of ``on_event`` included, no process of the worker is
    left alive.

    Args:
        module: the worker's module, which takes the path of its job file.
        job: the job file.
        run_dir: folder for the event log, the logs and the handle; made when absent.
        nproc: processes under torchrun; None starts the module alone.
        profile: thread limits, environment, time limits and grace; default: those of an empty profile.
        on_event: called in this thread, in order.
        env: variables over those of the caller and the profile.
        hold: descriptors that stay open until the last process is gone (a lease's lock).
        tasks: start so many copies, each alone, as an array of a cluster's queue; each has an event log of its own
            (``base.event_logs``).
        before_restart: module that a cluster runs with the job before it starts the worker again by itself.

    Raises:
        DiskFull: it ran out of disk, or its disk is full now.
        WorkerFailed: it ended with an error, stood still, or ran out of time; with the last lines of the rank that
            failed first.
        WorkerPreempted: the cluster took its machines away and does not start it again.
        InfrastructureFailed: a machine or the cluster failed.
        InputError: the cluster refuses the job.
        WorkerCanceled: somebody else asked it to stop.
    """
    profile = profile or ComputeProfile()
    run_dir.mkdir(parents=True, exist_ok=True)
    launcher = launcher_for(profile)
    spec = WorkerSpec(
        module, job.absolute(), run_dir.absolute(), profile, nproc, env or {}, hold, tasks, before_restart
    )
    logs = event_logs(tasks)
    found = _same_worker(launcher, spec)
    # earlier attempts wrote events too: those were handed on then
    offsets = _handed_on(found, logs) if found else [size_of(run_dir / log) for log in logs]
    handle = found or launcher.submit(spec)
    try:
        marks: list[Path | None] = [_mark(handle, log) if launcher.outlives_caller else None for log in logs]
        for mark, offset in zip(marks, offsets, strict=True):
            if mark is not None:
                write_text(mark, str(offset))
        if launcher.outlives_caller:
            on_event(event("submitted", launcher=handle.launcher, job=handle.id))
        if found:
            on_event(event("warning", message=f"watching the worker of an earlier attempt (job {handle.id})"))
        tails = [
            _Tail(run_dir / log, on_event, offset, mark) for log, offset, mark in zip(logs, offsets, marks, strict=True)
        ]
        status = _watch(launcher, handle, spec, tails)
    except BaseException:
        launcher.cancel(handle)
        raise
    if status.reason == "canceled":
        raise WorkerCanceled(f"{module}: stopped on request; log: {handle.log_dir}")
    if status.reason == "refused":
        launcher.cancel(handle)
        raise InputError(f"{module} cannot start: {status.detail}")
    if status.reason != "exited" or status.exit_code != 0:
        complaint = next((tail.complaint for tail in tails if tail.complaint), "")
        raise _failed(launcher, handle, spec, status, complaint)


def _same_worker(launcher: Launcher, spec: WorkerSpec) -> Handle | None:
    """A living worker of this very job, started by a caller that is gone. One of another job is ended."""
    if not launcher.outlives_caller or (handle := launcher.find(spec.run_dir)) is None:
        return None
    details = handle.details
    known = (details.get("module"), details.get("job_sha256"), details.get("tasks"))
    if known == (spec.module, sha256_file(spec.job), spec.tasks):
        return handle
    launcher.cancel(handle)
    return None


def _handed_on(handle: Handle, logs: Sequence[str]) -> list[int]:
    """Bytes of each event log; without a mark, what was there before the worker."""
    offsets = []
    for log in logs:
        try:
            offsets.append(int(_mark(handle, log).read_text()))
        except (OSError, ValueError):
            offsets.append(int(handle.details["events_offset"]) if log == EVENTS else 0)
    return offsets


def _mark(handle: Handle, log: str) -> Path:
    return handle.log_dir / (_HANDED_ON if log == EVENTS else f"{_HANDED_ON}-{log}")


def _watch(launcher: Launcher, handle: Handle, spec: WorkerSpec, tails: Sequence[_Tail]) -> Status:
    start = time.monotonic()
    limits = spec.profile
    while True:
        status = launcher.poll(handle)
        for tail in tails:
            tail.read()  # after poll, so that the events of a worker that just ended are all read
        if not status.running:
            return status
        now = time.monotonic()
        if status.reason == "queued":
            start = tails[0].seen = now
        if now - max(tail.seen for tail in tails) > limits.stall_timeout_s:
            raise _stopped(launcher, handle, spec, f"no event for {limits.stall_timeout_s:g} s (stall_timeout_s)")
        if limits.timeout_s is not None and now - start > limits.timeout_s:
            raise _stopped(launcher, handle, spec, f"still running after {limits.timeout_s:g} s (timeout_s)")
        time.sleep(_POLL_S)


def _stopped(launcher: Launcher, handle: Handle, spec: WorkerSpec, why: str) -> WorkerFailed:
    """End a worker that hangs; its last lines are read first, before the signals add theirs."""
    failure = launcher.failure(handle, _LAST_LINES)
    status = launcher.cancel(handle)
    return WorkerFailed(f"{spec.module}: {why}; ended. Log: {handle.log_dir}", status.exit_code, failure.lines)


def _failed(
    launcher: Launcher, handle: Handle, spec: WorkerSpec, status: Status, complaint: str
) -> WorkerFailed | DiskFull:
    failure = launcher.failure(handle, _LAST_LINES)
    code = status.exit_code if failure.exit_code is None else failure.exit_code
    kind = {"preempted": WorkerPreempted, "infrastructure": InfrastructureFailed}.get(status.reason, WorkerFailed)
    if status.reason == "lost" and handle.launcher == "local":
        why = "its supervisor was killed, so the worker was ended"
    elif status.reason == "lost":
        kind, why = InfrastructureFailed, status.detail
    elif status.reason in ("preempted", "infrastructure"):
        why = f"{status.reason} ({status.detail}); a retry resumes"
    elif code is not None and code < 0:
        why = f"killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
    else:
        why = f"exit status {code}"
    who = "" if failure.rank is None else f" rank {failure.rank}"
    who = who if failure.task is None else f" task {failure.task}{who}"
    said = f" {complaint.rstrip('.')}." if complaint else ""
    text = f"{spec.module}{who}: {why}.{said} Log: {handle.log_dir}"
    if code == EXIT_NO_SPACE or says_no_space([complaint, *failure.lines]) or is_full(spec.run_dir):
        return DiskFull(spec.run_dir.parent, text)
    return kind(text, code, failure.lines)
