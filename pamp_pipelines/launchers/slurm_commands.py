"""Slurm's own commands: their arguments, their answers, and what it means when they have none."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.errors import InputError, LauncherError

_LIMIT_S = 60.0
ACTIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
                    "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT",
                    "RESV_DEL_HOLD", "POWER_UP_NODE"})  # fmt: skip
"""States in which a job has processes, or will have some."""
QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT",
                    "RESV_DEL_HOLD", "POWER_UP_NODE"})  # fmt: skip


_TRANSIENT = ("unable to contact", "timed out", "temporarily", "connection", "slurm backup controller", "communication")


class Unreachable(LauncherError):
    """The controller does not answer, or its command is not to be had: nothing can be said about a job."""


@dataclass(frozen=True)
class JobState:
    """What Slurm says about a job."""

    state: str
    """As squeue and sacct spell it out: RUNNING, NODE_FAIL, …"""
    reason: str = ""
    nodes: str = ""

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    def __str__(self) -> str:
        reason = f", {self.reason}" if self.reason not in ("", "None") else ""
        return f"{self.state}{reason}" + (f" on {self.nodes}" if self.nodes else "")


def submit(script: Path) -> str:
    """Hand a script to sbatch; returns the job's number.

    Raises:
        InputError: Slurm refuses the job, e.g. for an unknown partition; with its own words.
        Unreachable: the controller does not answer; the job may have been taken all the same. Or there is no sbatch.
    """
    done = _run("sbatch", "--parsable", str(script))
    if done.returncode != 0:
        words = _words(done)
        if any(sign in words.lower() for sign in _TRANSIENT):
            raise Unreachable(f"sbatch: {words}")
        raise InputError(f"sbatch refused the job ({script}): {words}; change the profile's `slurm` fields")
    return done.stdout.strip().partition(";")[0]


def job_state(job: str, name: str) -> JobState | None:
    """The job's state; None when Slurm knows nothing of it (any more).

    The name tells it from a stranger: a controller that was set up anew counts from 1 again.

    Raises:
        Unreachable: the controller does not answer.
    """
    done = _run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%j|%T|%r|%N")
    if done.returncode == 0 and done.stdout.strip():
        rows = [line.split("|", 3) for line in done.stdout.strip().splitlines()]
        return _of_all([JobState(*state) for found, *state in rows if found == name])
    if done.returncode != 0 and "invalid job id" not in done.stderr.lower():
        raise Unreachable(f"squeue does not answer for job {job}: {_words(done)}")
    return _accounted(job, name)


def _accounted(job: str, name: str) -> JobState | None:
    """From the accounting database, where the cluster has one."""
    try:
        done = _run(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=JobName,State,NodeList"
        )
    except LauncherError:
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    rows = [line.split("|", 2) for line in done.stdout.strip().splitlines()]
    # state: "CANCELLED by 1000"
    return _of_all([JobState(state.split()[0], nodes=nodes) for found, state, nodes in rows if found == name])


def _of_all(states: list[JobState]) -> JobState | None:
    """One state for the tasks of an array: the job runs while one does, and ends badly when one did."""
    running = [state for state in states if state.active and state.state not in QUEUED]
    queued = [state for state in states if state.state in QUEUED]
    bad = [state for state in states if state.state != "COMPLETED"]
    return next(iter([*running, *queued, *bad, *states]), None)


def find_by_name(name: str) -> str | None:
    """The number of this user's active job of that name."""
    done = _run("squeue", "--noheader", "--me", f"--name={name}", "--format=%F")
    if done.returncode != 0:
        raise Unreachable(f"squeue does not answer for job {name}: {_words(done)}")
    return next(iter(done.stdout.split()), None)


def has_step(job: str) -> bool:
    """Whether srun has started the worker: a signal that comes before reaches nobody."""
    done = _run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i")
    return any(step.rpartition(".")[2].isdecimal() for step in done.stdout.split())


def cancel_pending(job: str) -> None:
    """Take a job out of the queue if it has not started."""
    _run("scancel", "--state=PENDING", job)


def terminate(job: str) -> None:
    """SIGTERM to the worker's processes on all nodes, but not to the batch shell, which sees the end."""
    _run("scancel", "--signal=TERM", job)


def kill(job: str) -> None:
    """End the job: SIGTERM, after Slurm's KillWait SIGKILL, to all that it has."""
    _run("scancel", job)


def kill_now(job: str) -> None:
    """SIGKILL to the worker's processes; the batch shell then sees the end."""
    _run("scancel", "--signal=KILL", job)


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except FileNotFoundError as error:
        raise Unreachable(f"{command[0]} is not installed here: a Slurm profile needs a submit host") from error
    except OSError as error:  # the file system that it lies on, or a machine without room for one more process
        raise Unreachable(f"{command[0]} cannot be started: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{command[0]} did not answer within {_LIMIT_S:g} s") from error


def _words(done: "subprocess.CompletedProcess[str]") -> str:
    return " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
