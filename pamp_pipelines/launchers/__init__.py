"""Running a worker somewhere: start, supervise, tail its events, cancel, find again."""

from pamp_pipelines.launchers.base import Handle, Launcher, Status, WorkerSpec
from pamp_pipelines.launchers.worker import find_worker, launcher_for, run_worker

__all__ = ["Handle", "Launcher", "Status", "WorkerSpec", "find_worker", "launcher_for", "run_worker"]
