"""What is left on a GPU when the process that trains, or one of its ranks, is killed with SIGKILL.

    python benchmarks/termination_gpu.py OUTPUT.json [--text FOLDER]

The 124 M model trains through the training stage in a process of its own, with a save every ten iterations. First
that process is killed: seconds until nothing of the run is alive and the GPU holds what it held before. Then it is
started again, which resumes, and a rank is killed: seconds until the stage has failed and nothing is alive. The third
start finishes the run.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gpu_runs
from gpu_shapes import prepare

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.producer import library_versions
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.launchers.base import read_handle
from pamp_pipelines.launchers.local import processes_with
from pamp_pipelines.project import Project
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.resolve import train_job
from pamp_pipelines.training.run import train

MODEL, NAME = "llama-125m-shape", "killed"
CONFIG: dict[str, Any] = {
    "sequence_length": 1024,
    "iterations": 60,
    "global_batch_size": 16,
    "micro_batch_size": 8,
    "optimizer": {"lr": 6e-4, "warmup_iterations": 5},
    "checkpoint": {"interval": 10},
    "validation": {"interval": 60},
}


def stage(folder: Path) -> None:
    """The training stage, as an asset or the command line calls it."""
    catalog, lake = load_catalog(Project(folder)), Lake(folder / "data/lake")

    def show(event: Event) -> None:
        if event.kind in ("started", "warning", "failed", "finished"):
            print(event.kind, dict(event.data), flush=True)

    train(train_job(catalog, lake, MODEL, NAME), show)


def used_mib() -> int:
    """Memory that is taken on the first GPU, of whatever process."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--stage", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(metrics: Path, iteration: int, process: subprocess.Popen[str]) -> None:
    while max((record["iteration"] for record in read_metrics(metrics)), default=0) < iteration:
        if process.poll() is not None:
            raise SystemExit(f"the stage ended too early:\n{process.communicate()[0][-3000:]}")
        time.sleep(0.05)


def gone(token: str, before_mib: int, since: float) -> dict[str, Any]:
    """Seconds until no process carries the run's token, and until the GPU's memory is free; what is left after 60 s."""
    found: dict[str, Any] = {}
    while time.monotonic() - since < 60 and len(found) < 2:
        passed = round(time.monotonic() - since, 1)
        if not processes_with(token):
            found.setdefault("seconds_until_no_process", passed)
        if used_mib() <= before_mib + 64:
            found.setdefault("seconds_until_memory_is_free", passed)
        time.sleep(0.1)
    return {**found, "processes_left": len(processes_with(token)), "mib_left": used_mib() - before_mib}


def measure(folder: Path, text: Path | None) -> dict[str, Any]:
    """Both deaths and the resumed ends."""
    catalog, lake = prepare(folder, {MODEL}, {NAME: CONFIG}, text)
    job = train_job(catalog, lake, MODEL, NAME)
    before = used_mib()
    report: dict[str, Any] = {}

    process = start(folder)
    wait_for(job.metrics_path, 15, process)
    handle = read_handle(job.run_dir)
    assert handle
    report["mib_while_training"] = used_mib() - before
    killed = time.monotonic()
    process.kill()
    process.communicate()
    report["stage_killed"] = gone(handle.token, before, killed)

    process = start(folder)
    wait_for(job.metrics_path, 35, process)
    handle = read_handle(job.run_dir)
    assert handle
    ranks = [p for p in processes_with(handle.token) if "pamp_pipelines.training.worker" in p.cmdline()]
    rank = max(ranks, key=lambda p: p.pid)
    killed = time.monotonic()
    os.kill(rank.pid, signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    report["rank_killed"] = {
        "seconds_until_the_stage_failed": round(time.monotonic() - killed, 1),
        "exit_code": process.returncode,
        "last_words": output.strip().splitlines()[-1][:500],
        **gone(handle.token, before, killed),
    }

    process = start(folder)
    output = process.communicate(timeout=300)[0]
    iterations = [record["iteration"] for record in read_metrics(job.metrics_path) if "loss" in record]
    report["finished"] = {
        "exit_code": process.returncode,
        "each_iteration_once": iterations == list(range(1, 61)),
        "started": [line for line in output.splitlines() if line.startswith("started")],
    }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--text", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = {"device": gpu_runs.device_name(), "libraries": library_versions()}
        report |= measure(Path(folder), options.text)
    gpu_runs.write(options.output, report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--stage":
        stage(Path(sys.argv[2]))
    else:
        main()
