"""Run one worker to its end: start it, hand on its events, watch it, end it when anything goes wrong."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import WorkerCanceled, WorkerFailed
from pamp_pipelines.lake.events import Event, OnEvent, ignore, read_events
from pamp_pipelines.launchers.base import Handle, Launcher, Status, WorkerSpec
from pamp_pipelines.launchers.local import LocalLauncher

EVENTS = "events.jsonl"
_POLL_S = 0.1
_LAST_LINES = 30


@dataclass
class _Tail:
    """Hands events on as they appear; remembers when the last one came and what a ``failed`` one said."""

    path: Path
    on_event: OnEvent
    offset: int
    seen: float = field(default_factory=time.monotonic)
    complaint: str = ""

    def read(self) -> None:
        events, self.offset = read_events(self.path, self.offset)
        for event in events:
            self._see(event)

    def _see(self, event: Event) -> None:
        if event.kind == "failed":
            self.complaint = str(event.data.get("message") or event.data.get("reason") or "")
        self.on_event(event)
        self.seen = time.monotonic()  # the time that on_event took is not the worker's


def launcher_for(profile: ComputeProfile) -> Launcher:
    """The launcher a profile names."""
    return {"local": LocalLauncher}[profile.launcher]()


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
) -> None:
    """Run ``python -m module JOB`` and return when it ended well.

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

    Raises:
        WorkerFailed: it ended with an error, stood still, or ran out of time; with the last lines of the rank that
            failed first.
        WorkerCanceled: somebody else asked it to stop.
    """
    profile = profile or ComputeProfile()
    run_dir.mkdir(parents=True, exist_ok=True)
    events = run_dir / EVENTS
    # earlier attempts wrote events too: those were handed on then
    tail = _Tail(events, on_event, events.stat().st_size if events.exists() else 0)
    launcher = launcher_for(profile)
    spec = WorkerSpec(module, job.absolute(), run_dir.absolute(), profile, nproc, env or {}, hold)
    handle = launcher.submit(spec)
    try:
        status = _watch(launcher, handle, spec, tail)
    except BaseException:
        launcher.cancel(handle)
        raise
    if status.reason == "canceled":
        raise WorkerCanceled(f"{module}: stopped on request; log: {handle.log_dir}")
    if status.reason != "exited" or status.exit_code != 0:
        raise _failed(launcher, handle, spec, status, tail.complaint)


def _watch(launcher: Launcher, handle: Handle, spec: WorkerSpec, tail: _Tail) -> Status:
    start = time.monotonic()
    limits = spec.profile
    while True:
        status = launcher.poll(handle)
        tail.read()  # after poll, so that the events of a worker that just ended are all read
        if not status.running:
            return status
        now = time.monotonic()
        if now - tail.seen > limits.stall_timeout_s:
            raise _stopped(launcher, handle, spec, f"no event for {limits.stall_timeout_s:g} s (stall_timeout_s)")
        if limits.timeout_s is not None and now - start > limits.timeout_s:
            raise _stopped(launcher, handle, spec, f"still running after {limits.timeout_s:g} s (timeout_s)")
        time.sleep(_POLL_S)


def _stopped(launcher: Launcher, handle: Handle, spec: WorkerSpec, why: str) -> WorkerFailed:
    """End a worker that hangs; its last lines are read first, before the signals add theirs."""
    failure = launcher.failure(handle, _LAST_LINES)
    status = launcher.cancel(handle)
    return WorkerFailed(f"{spec.module}: {why}; ended. Log: {handle.log_dir}", status.exit_code, failure.lines)


def _failed(launcher: Launcher, handle: Handle, spec: WorkerSpec, status: Status, complaint: str) -> WorkerFailed:
    failure = launcher.failure(handle, _LAST_LINES)
    code = status.exit_code if failure.exit_code is None else failure.exit_code
    if status.reason == "lost":
        why = "its supervisor was killed, so the worker was ended"
    elif code is not None and code < 0:
        why = f"killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
    else:
        why = f"exit status {code}"
    who = "" if failure.rank is None else f" rank {failure.rank}"
    said = f" {complaint.rstrip('.')}." if complaint else ""
    return WorkerFailed(f"{spec.module}{who}: {why}.{said} Log: {handle.log_dir}", code, failure.lines)
