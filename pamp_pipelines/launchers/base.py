"""What a launcher is: submit a worker, look at it, read its log, cancel it, find it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.launchers.logs import Failure

RUN_TOKEN = "PAMP_RUN_TOKEN"
"""Environment variable that every process of a worker carries, so that leftovers can be told from strangers."""

TASK = "PAMP_TASK"
"""Environment variable of a worker that is started in several tasks: its number, from 0."""
TASKS = "PAMP_TASKS"
"""How many there are."""

HANDLE = "handle.json"
EVENTS = "events.jsonl"
"""The worker's event log, in its run directory; task N of several has ``events-N.jsonl``, and no two write one file."""


def event_logs(tasks: int | None) -> list[str]:
    """Names of a worker's event logs."""
    return [EVENTS] if tasks is None else [f"events-{task}.jsonl" for task in range(tasks)]


@dataclass(frozen=True)
class WorkerSpec:
    """One worker to start: ``python -m module job``, or that under torchrun."""

    module: str
    job: Path
    run_dir: Path
    profile: ComputeProfile
    processes: int | None = None
    """Ranks under torchrun; None starts the module alone, without torchrun."""
    env: Mapping[str, str] = field(default_factory=dict)
    hold: Sequence[int] = ()
    """Descriptors that stay open until the last process of the worker is gone: a lease's lock. Only local workers can
    hold them; of others `Launcher.find` tells whether they are alive."""
    tasks: int | None = None
    """So many copies, each alone and told its number by PAMP_TASK: a cluster's array. They share no rendezvous, start
    and end as the queue lets them, and all must end well."""
    before_restart: str | None = None
    """Module that a cluster runs with the job, alone, each time before it starts the worker again by itself."""


class Handle(BaseModel):
    """Finds a submitted worker again, also from another process; stored as ``run_dir/handle.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    launcher: Literal["local", "slurm", "kubernetes"]
    token: str
    """Value of PAMP_RUN_TOKEN."""
    host: str
    id: str
    """The launcher's own id: the supervisor's process id, or the Slurm job's number; empty while that is asked for."""
    submitted: str
    """UTC, ISO 8601."""
    log_dir: Path
    details: dict[str, Any] = {}


def read_handle(run_dir: Path) -> Handle | None:
    """The handle that was stored last; None when there is none, or it is damaged."""
    try:
        return Handle.model_validate_json((run_dir / HANDLE).read_bytes())
    except (OSError, ValueError):
        return None


def write_handle(run_dir: Path, handle: Handle) -> None:
    write_text(run_dir / HANDLE, handle.model_dump_json(indent=2) + "\n")


Reason = Literal[
    "queued", "running", "exited", "canceled", "orphaned", "lost", "preempted", "infrastructure", "refused"
]


class Status(BaseModel):
    """State of a worker.

    ``queued``: it waits for machines. ``preempted``: the cluster took its machines away, or its time was up.
    ``infrastructure``: a machine failed. ``refused``: it can never start as declared. ``lost``: it is gone and nobody
    saw the end. ``exit_code`` is negative for a signal, as in ``subprocess``; None while running, or when nobody saw
    the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Literal[
        "queued", "running", "exited", "canceled", "orphaned", "lost", "preempted", "infrastructure", "refused"
    ]
    exit_code: int | None = None
    detail: str = ""
    """What the cluster says about it, for people."""

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.reason in ("queued", "running")


def size_of(file: Path) -> int:
    """Bytes of a file that may be absent."""
    return file.stat().st_size if file.exists() else 0


class Launcher(Protocol):
    """Runs workers somewhere."""

    outlives_caller: bool
    """Whether a worker goes on when the process that submitted it is gone, and can be watched by another one."""

    def preview(self, spec: WorkerSpec) -> str:
        """What `submit` would run, as text; starts and writes nothing."""

    def submit(self, spec: WorkerSpec) -> Handle:
        """Start a worker and store its handle in ``run_dir``."""

    def poll(self, handle: Handle) -> Status:
        """Where the worker stands; does not wait."""

    def logs(self, handle: Handle, offset: int = 0) -> tuple[str, int]:
        """Text of the worker's main log after ``offset`` bytes, and the offset to go on from."""

    def failure(self, handle: Handle, lines: int) -> Failure:
        """Who failed first, and the last ``lines`` of its log."""

    def cancel(self, handle: Handle) -> Status:
        """Ask the worker to stop, wait for its grace time, end it; returns when nothing of it is alive."""

    def find(self, run_dir: Path) -> Handle | None:
        """The worker of ``run_dir`` that is still alive, or None."""
