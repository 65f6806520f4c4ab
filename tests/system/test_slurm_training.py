"""NVIDIA's training loop on two Slurm nodes, pipeline- and data-parallel.

Its caller is killed, another one finds the job, a rank is killed, and a retry finishes.
"""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
import yaml

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.errors import WorkerFailed
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.launchers.base import RUN_TOKEN, read_handle
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.resolve import train_job
from pamp_pipelines.training.run import train
from tests.launchers.conftest import wait_for
from tests.system.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.system

CONFIG = {
    "description": "Two stages, two replicas.",
    "models": ["scratch"],
    "corpora": {"sonnets": 1},
    "sequence_length": 64,
    "iterations": 8,
    "global_batch_size": 4,
    "micro_batch_size": 1,
    "optimizer": {"lr": 5e-3},
    "precision": "fp32",
    "parallelism": {"pipeline": 2},
    "checkpoint": {"interval": 2},
    "validation": {"interval": 8},
    "profile": "cluster",
}
PROFILE = {
    "launcher": "slurm",
    "nodes": 2,
    "processes_per_node": 2,
    "threads_per_process": 1,
    "grace_s": 5,
    "env": {"CUDA_VISIBLE_DEVICES": ""},
    "slurm": {"poll_s": 0.5},
}


def ranks(token: str) -> dict[int, psutil.Process]:
    """Living ranks of a run."""
    found = {}
    for process in psutil.process_iter():
        try:
            env = process.environ()
        except (psutil.Error, OSError):
            continue
        if env.get(RUN_TOKEN) == token and "RANK" in env:
            found.setdefault(int(env["RANK"]), process)
    return found


@pytest.mark.timeout(1800)  # on a machine with other work
def test_a_killed_two_node_training_is_finished_by_a_retry(slurm: SlurmCluster, own_project: Project) -> None:
    (own_project.root / "assets/training_configs/wide.yaml").write_text(yaml.safe_dump(CONFIG))
    (own_project.root / "resources/cluster.yaml").write_text(yaml.safe_dump(PROFILE))
    catalog, lake = load_catalog(own_project), Lake(own_project.lake)
    scan_corpus(corpus_job(catalog, lake, "sonnets"))
    tokenize(tokenize_job(catalog, lake, "sonnets", "scratch"))
    import_hf(import_job(catalog, lake, "scratch"))
    command = ["train", "scratch", "wide", "--project", str(own_project.root)]
    caller = subprocess.Popen([sys.executable, "-m", "pamp_pipelines.cli", *command], start_new_session=True)
    run_dir = lake.version_dir("scratch", "wide", 1)
    wait_for(lambda: bool((handle := read_handle(run_dir)) and handle.id), 300, "submission")
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait()
    submitted = read_handle(run_dir)
    job = train_job(catalog, lake, "scratch", "wide")

    def kill_rank_3(event: Event) -> None:
        if event.kind == "metric" and event.data["iteration"] >= 5:
            rank = ranks(read_handle(job.run_dir).token).get(3)
            if rank is not None:
                rank.kill()

    with pytest.raises(WorkerFailed, match="rank 3: killed by signal 9") as error:
        train(job, kill_rank_3)
    assert error.value.exit_code == -9
    assert read_handle(run_dir) == submitted  # it watched the job of the killed caller
    assert slurm.jobs() == []
    assert ranks(read_handle(job.run_dir).token) == {}

    seen: list[Event] = []
    artifact = train(job, seen.append)
    begun = next(e for e in seen if e.kind == "started")
    assert begun.data["iteration"] >= 2  # resumed
    metrics = read_metrics(job.metrics_path)
    assert [m["iteration"] for m in metrics if m["iteration"]] == list(range(1, 9))
    assert metrics[-1]["loss"] < metrics[1]["loss"]
    assert artifact.manifest.stats["iterations"] == 8
    script = (read_handle(job.run_dir).log_dir / "job.sh").read_text()
    assert "#SBATCH --nodes=2\n" in script
    assert json.loads((read_handle(job.run_dir).log_dir / "exit.json").read_text())["exit_code"] == 0
