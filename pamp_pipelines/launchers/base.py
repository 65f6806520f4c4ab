"""What a launcher is: submit a worker, look at it, read its log, cancel it, find it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.launchers.logs import Failure

RUN_TOKEN = "PAMP_RUN_TOKEN"
"""Environment variable that every process of a worker carries, so that leftovers can be told from strangers."""

HANDLE = "handle.json"


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
    """Descriptors that stay open until the last process of the worker is gone: a lease's lock."""


class Handle(BaseModel):
    """Finds a submitted worker again, also from another process; stored as ``run_dir/handle.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    launcher: Literal["local"]
    token: str
    """Value of PAMP_RUN_TOKEN."""
    host: str
    id: str
    """The launcher's own id: for ``local`` the supervisor's process id."""
    submitted: str
    """UTC, ISO 8601."""
    log_dir: Path
    details: dict[str, Any] = {}


class Status(BaseModel):
    """State of a worker.

    ``exit_code`` is negative for a signal, as in ``subprocess``; None while running, or when nobody saw the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Literal["running", "exited", "canceled", "orphaned", "lost"]
    exit_code: int | None = None

    @property
    def running(self) -> bool:
        return self.reason == "running"


class Launcher(Protocol):
    """Runs workers somewhere."""

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
