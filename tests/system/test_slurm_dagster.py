"""A training that Dagster runs on Slurm: Dagster dies, Slurm dies, a person cancels, one more launch finishes it."""

import signal

import dagster as dg
import pytest
import yaml

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import import_job
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.launchers.base import read_handle
from pamp_pipelines.launchers.slurm import SlurmLauncher
from pamp_pipelines.orchestration.events import JOB_TAG
from pamp_pipelines.project import Project
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import tokenize_job
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.saved import Saved
from tests.launchers.conftest import wait_for
from tests.system.dagster_process import DagsterProcess
from tests.system.slurm_cluster import SlurmCluster
from tests.system.test_slurm_training import CONFIG, PROFILE, ranks

pytestmark = pytest.mark.system

LONG = 300
ASSET, PARTITION = "pretrained_checkpoint", "scratch|wide"


def signal_ranks(token: str, number: signal.Signals) -> None:
    for process in ranks(token).values():
        process.send_signal(number)


@pytest.mark.timeout(1800)  # on a machine with other work
def test_dagster_and_slurm_die_under_a_training(
    own_slurm: SlurmCluster, own_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, root = own_slurm, own_project.root
    config = {**CONFIG, "iterations": 300, "parallelism": {}}
    config |= {"checkpoint": {"interval": 100}, "validation": {"interval": 300}}
    (root / "assets/training_configs/wide.yaml").write_text(yaml.safe_dump(config))
    profile = {**PROFILE, "processes_per_node": 1, "grace_s": 120}
    (root / "resources/cluster.yaml").write_text(yaml.safe_dump(profile))
    monkeypatch.setenv("PAMP_PROJECT", str(root))
    catalog, lake = load_catalog(own_project), Lake(own_project.lake)
    scan_corpus(corpus_job(catalog, lake, "sonnets"))
    tokenize(tokenize_job(catalog, lake, "sonnets", "scratch"))
    import_hf(import_job(catalog, lake, "scratch"))
    run_dir = lake.version_dir("scratch", "wide", 1)

    with DagsterProcess(own_project) as dagster:
        first = dagster.launch(ASSET, PARTITION)
        saved = Saved(run_dir / "checkpoints")
        dagster.until(first, lambda: saved.tracker() == 100, LONG, "first checkpoint")
        handle = read_handle(run_dir)
        assert handle is not None
        # the ranks stand still until the cancel, so that nothing depends on how fast this test is
        signal_ranks(handle.token, signal.SIGSTOP)
        assert dagster.run(first).tags[JOB_TAG] == f"slurm {handle.id}"
        dagster.kill()
        assert slurm.jobs() == [handle.id]  # the job does not mind

    with DagsterProcess(own_project) as dagster:
        assert dagster.run(first).status is dg.DagsterRunStatus.FAILURE
        second = dagster.launch(ASSET, PARTITION)
        dagster.until(second, lambda: JOB_TAG in dagster.run(second).tags, LONG, "the job is found again")
        assert dagster.run(second).tags[JOB_TAG] == f"slurm {handle.id}"
        assert slurm.jobs() == [handle.id]  # and no other one submitted

        slurm.kill_daemon("slurmctld")
        slurm.kill_daemon("n1")
        launcher = SlurmLauncher()
        wait_for(lambda: "does not answer" in launcher.poll(handle).detail, LONG, "an unanswered question")
        slurm.start_daemon("slurmctld")
        slurm.start_daemon("n1")
        wait_for(lambda: launcher.poll(handle).detail.startswith("RUNNING"), 60, "the truth, within a minute")
        assert dagster.run(second).status is dg.DagsterRunStatus.STARTED
        assert len(ranks(handle.token)) == 2

        dagster.terminate(second)
        signal_ranks(handle.token, signal.SIGCONT)
        assert dagster.wait(second, LONG) is dg.DagsterRunStatus.CANCELED
        assert slurm.jobs() == []
        assert ranks(handle.token) == {}
        assert read_handle(run_dir) == handle

        assert (saved.tracker() or 0) > 100  # what the cancel saved
        third = dagster.launch(ASSET, PARTITION)
        assert dagster.wait(third, LONG) is dg.DagsterRunStatus.SUCCESS, dagster.messages(third)
        begun = next(message for message in dagster.messages(third) if message.startswith("started:"))
        assert "iteration 0" not in begun  # it resumed
    assert [m["iteration"] for m in read_metrics(run_dir / "metrics.jsonl") if m["iteration"]] == list(range(1, 301))
