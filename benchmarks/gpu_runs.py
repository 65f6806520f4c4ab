"""The pipeline's own worker on this machine's GPUs for a number of iterations, without a save at the end.

A whole run ends with a validation and a save, which takes longer than the iterations that a benchmark needs, and of a
large model more room than there is. So the worker is started as a run starts it, watched through ``metrics.jsonl``, and
killed when it has logged enough.
"""

import dataclasses
import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.launchers.base import Handle, WorkerSpec
from pamp_pipelines.launchers.local import LocalLauncher, kill_leftovers
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.resolve import train_job
from pamp_pipelines.training.run import WORKER

WARM_UP = 8
"""Iterations that compile kernels and fill caches; they do not count."""


@dataclasses.dataclass
class Running:
    """A worker that was started."""

    name: str
    job: TrainJob
    stop_after: int
    launcher: LocalLauncher
    handle: Handle
    started: float
    arrived: dict[int, float] = dataclasses.field(default_factory=dict)
    """Seconds of ``time.monotonic`` at which the record of an iteration was seen."""

    def look(self) -> bool:
        """Whether it has logged enough or has ended."""
        now = time.monotonic()
        for record in read_metrics(self.job.metrics_path):
            self.arrived.setdefault(record["iteration"], now)
        return max(self.arrived, default=0) >= self.stop_after or not self.launcher.poll(self.handle).running


def start(catalog: Catalog, lake: Lake, model: str, config: str, stop_after: int, env: dict[str, str]) -> Running:
    """Start the worker of a training as its stage would."""
    job = train_job(catalog, lake, model, config)
    job.run_dir.mkdir(parents=True, exist_ok=True)
    file = job.run_dir / "job.json"
    file.write_text(job.model_dump_json(indent=2))
    launcher = LocalLauncher()
    spec = WorkerSpec(WORKER, file, job.run_dir, job.profile, job.world_size, env=env)
    return Running(f"{model} {config}", job, stop_after, launcher, launcher.submit(spec), time.monotonic())


def finish(running: Sequence[Running], seconds: float) -> None:
    """Wait until each has logged enough, has ended, or the time is over; nothing of them is alive then."""
    deadline, left = time.monotonic() + seconds, list(running)
    while left and time.monotonic() < deadline:
        for run in [run for run in left if run.look()]:
            kill_leftovers(run.handle.token)
            left.remove(run)
        time.sleep(0.01)
    for run in left:
        kill_leftovers(run.handle.token)


def figures(run: Running) -> dict[str, Any]:
    """Speed and memory after the warm-up, and losses; ``error`` where the worker ended too early."""
    records = [record for record in read_metrics(run.job.metrics_path) if "loss" in record]
    steady = [record for record in records if record["iteration"] > WARM_UP]
    if not steady or records[-1]["iteration"] < run.stop_after:
        log = run.launcher.failure(run.handle, 40)
        return {"iterations": len(records), "error": str(log)[-3000:]}

    def median(field: str) -> float:
        values = [record[field] for record in steady if record.get(field) is not None]
        return round(statistics.median(values), 3) if values else float("nan")

    shown = sorted({1, 10, 20, 50, 100, 150, run.stop_after})
    return {
        "micro_batch_size": run.job.micro_batch_size,
        "tokens_per_second": round(median("tokens_per_second")),
        "ms_per_iteration": round(1e3 * median("seconds_per_iteration"), 1),
        "model_tflops": median("model_tflops"),
        "mfu": median("mfu"),
        "joules_per_iteration": median("gpu_joules"),
        "peak_memory_gib": round(max(record.get("peak_memory_gib", 0.0) for record in records), 1),
        "loss": {str(r["iteration"]): r["loss"] for r in records if r["iteration"] in shown},
        "seconds_to_first_iteration": round(min(run.arrived.values()) - run.started, 1),
        "iterations": len(records),
    }


def curve(run: Running, field: str = "loss") -> dict[int, float]:
    """A field by iteration; not all have it: a step that fp16's loss scaling skips has no gradient norm."""
    records = [record for record in read_metrics(run.job.metrics_path) if record["iteration"] <= run.stop_after]
    return {record["iteration"]: record[field] for record in records if record.get(field) is not None}


def device_name() -> str:
    """Of the first GPU; on a machine without one the scripts can be tried with configs for CPUs."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"


def forget(run: Running) -> None:
    """Delete a run's directory: its checkpoints may be large."""
    shutil.rmtree(run.job.run_dir, ignore_errors=True)


def write(output: Path, report: dict[str, Any]) -> None:
    """The report so far, whole at any time."""
    temporary = output.with_suffix(".part")
    temporary.write_text(json.dumps(report, indent=1) + "\n")
    temporary.replace(output)
