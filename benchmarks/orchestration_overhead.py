"""What Dagster adds to the start of a training: from its step's start to the first iteration, less a bare worker's.

    python benchmarks/orchestration_overhead.py --work FOLDER --repeats 3

A tiny project (that of the tests) is materialised up to its training. Then its training runs, in turn, as a Dagster
step (supervisor, lease, checks and all) and as torchrun with the worker alone. Prints a JSON object; the smallest of
the repeats count, since whatever else the machine does only adds. ``before_worker_s`` is the part until torchrun was
started: after that both do the same, and on a busy machine the difference of two such starts is noise.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' project

from pamp_pipelines.lake.events import read_events
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.project import Project
from tests.conftest import make_tiny_project

MODEL, CONFIG = "scratch", "both"


def first_iteration(run_dir: Path) -> float:
    """When the first step's metrics were reported, in seconds since the epoch."""
    return next(e.time for e in read_events(run_dir / "events.jsonl")[0] if e.kind == "metric" and e.data["iteration"])


def as_step(project: Project) -> tuple[float, float, Path]:
    """Seconds from the start of Dagster's step to the start of torchrun and to the first iteration; the version."""
    shutil.rmtree(project.lake / "runs", ignore_errors=True)
    (done,) = materialize(project, "pretrained_checkpoint", f"{MODEL}|{CONFIG}")
    with open_instance(project) as instance:
        assert done.run_id
        records = instance.get_records_for_run(done.run_id, of_type=dg.DagsterEventType.STEP_START).records
        started = records[0].event_log_entry.timestamp
    launched = (done.path / "handle.json").stat().st_mtime
    return launched - started, first_iteration(done.path) - started, done.path


def bare(run_dir: Path, folder: Path) -> float:
    """Seconds from the start of torchrun to the first iteration of the same job."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    job = json.loads((run_dir / "job.json").read_text()) | {"run_dir": str(folder)}
    (folder / "job.json").write_text(json.dumps(job))
    worker = ["-m", "pamp_pipelines.training.worker", str(folder / "job.json")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job['world_size']}"]
    started = time.time()
    subprocess.run([*torchrun, *worker], check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return first_iteration(folder) - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    project = make_tiny_project(options.work.resolve() / "project")
    for asset, partition in (
        *(("raw_corpus", corpus) for corpus in ("plays", "sonnets")),
        *(("tokenized_shards", f"{corpus}|{MODEL}") for corpus in ("plays", "sonnets")),
        ("megatron_checkpoint", MODEL),
    ):
        materialize(project, asset, partition)
    before, steps, workers = [], [], []
    for _ in range(options.repeats):
        launched, seconds, run_dir = as_step(project)
        before.append(round(launched, 2))
        steps.append(round(seconds, 2))
        workers.append(round(bare(run_dir, options.work.resolve() / "bare"), 2))
    figures = {"before_worker_s": before, "as_step_s": steps, "bare_s": workers}
    print(json.dumps({**figures, "overhead_s": round(min(steps) - min(workers), 2), "limit_s": 3.0}))


if __name__ == "__main__":
    main()
