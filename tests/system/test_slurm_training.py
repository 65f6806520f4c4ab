"""NVIDIA's training loop on two Slurm nodes, pipeline- and data-parallel.

Its caller is killed, another one finds the job, a rank is killed, and a retry resumes; that is preempted, saves, is
started again by Slurm, and finishes.
"""

import json
import os
import signal
import subprocess
import sys
import threading

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


def preempt(slurm: SlurmCluster, job: str, token: str) -> None:
    """Let a job in `urgent` take the nodes; then see to it that the preempted job starts again soon.

    The ranks stand still until Slurm has them go on, with SIGCONT and SIGTERM: they cannot have finished before.
    """
    for rank in ranks(token).values():
        rank.send_signal(signal.SIGSTOP)
    slurm.command("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: slurm.command("squeue", "-h", "-j", job, "-o", "%T") == "PENDING", 120, "requeue")
    slurm.hurry(job)


@pytest.mark.timeout(1800)  # on a machine with other work
def test_a_killed_two_node_training_is_finished_by_a_retry(slurm: SlurmCluster, own_project: Project) -> None:
    config = {**CONFIG, "iterations": 60, "checkpoint": {"interval": 7}, "validation": {"interval": 60}}
    (own_project.root / "assets/training_configs/wide.yaml").write_text(yaml.safe_dump(config))
    (own_project.root / "resources/cluster.yaml").write_text(yaml.safe_dump({**PROFILE, "grace_s": 25}))
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
        if event.kind == "metric" and event.data["iteration"] >= 8:
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
    other: list[threading.Thread] = []

    def listen(event: Event) -> None:
        seen.append(event)
        if event.kind == "metric" and event.data["iteration"] >= 16 and not other:
            handle = read_handle(run_dir)
            other.append(threading.Thread(target=preempt, args=(slurm, handle.id, handle.token)))
            other[0].start()

    artifact = train(job, listen)
    other[0].join()
    first, second = (number for number, e in enumerate(seen) if e.kind == "started")
    assert seen[first].data["iteration"] >= 7  # resumed from what was saved before the kill
    trained = [e.data["iteration"] for e in seen[first:second] if e.kind == "metric"]
    assert seen[second].data["iteration"] >= trained[-1] >= 16  # Slurm's signal had it save where it was
    metrics = read_metrics(job.metrics_path)
    assert [m["iteration"] for m in metrics if m["iteration"]] == list(range(1, 61))
    assert metrics[-1]["loss"] < metrics[1]["loss"]
    assert artifact.manifest.stats["iterations"] == 60
    script = (read_handle(job.run_dir).log_dir / "job.sh").read_text()
    assert "#SBATCH --nodes=2\n" in script
    ended = json.loads((read_handle(job.run_dir).log_dir / "exit.json").read_text())
    assert (ended["exit_code"], ended["restarts"]) == (0, 1)
