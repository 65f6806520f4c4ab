"""Many models scored by an array: what is published, what is left out, and that nothing is submitted twice."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, WorkerFailed
from pamp_pipelines.evaluation import array, array_worker, run
from pamp_pipelines.evaluation.array import Jobs, evaluate_many
from pamp_pipelines.evaluation.plain import plain_job
from pamp_pipelines.evaluation.run import evaluate
from pamp_pipelines.evaluation.spec import EvaluateJob
from pamp_pipelines.launchers.base import Handle, WorkerSpec
from pamp_pipelines.launchers.local import LocalLauncher
from pamp_pipelines.project import Project
from tests.launchers.conftest import Bench, bench, living  # noqa: F401

CLUSTER = ComputeProfile(launcher="slurm", nodes=2, processes_per_node=1)


@pytest.fixture
def jobs(tiny_project: Project, tmp_path: Path) -> list[EvaluateJob]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a rose"}\n')
    model = tiny_project.data / "models/imported"
    data = {"heldout_perplexity": rows}
    return [plain_job(model, ["heldout_perplexity"], tmp_path / f"scores{n}", data=data) for n in range(3)]


def done(job: EvaluateJob) -> None:
    """What a worker leaves for its only evaluation."""
    folder = job.work / job.evaluations[0].name
    folder.mkdir(parents=True)
    (folder / "results.json").write_text("{}")
    (folder / "done.json").write_text(json.dumps({"stats": {}, "checks": []}))


def cluster(monkeypatch: pytest.MonkeyPatch, act: Callable[[list[EvaluateJob]], object]) -> list[dict[str, Any]]:
    """Have ``act`` do what an array does to its jobs; returns what each call was asked for."""
    calls: list[dict[str, Any]] = []

    def run_worker(module: str, file: Path, run_dir: Path, **options: Any) -> None:
        found = list(Jobs.model_validate_json(file.read_bytes()).jobs)
        calls.append({"jobs": found, "run_dir": run_dir, **options})
        act(found)

    monkeypatch.setattr(array, "run_worker", run_worker)
    return calls


def test_all_are_scored_in_one_array(jobs: list[EvaluateJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = cluster(monkeypatch, lambda found: [done(job) for job in found])
    artifacts = evaluate_many(jobs, CLUSTER, tmp_path)
    assert [artifact.path for artifact in artifacts] == [job.evaluations[0].output for job in jobs]
    assert [(len(call["jobs"]), call["tasks"], call["env"]["HF_HUB_OFFLINE"]) for call in calls] == [(3, 2, "1")]
    assert evaluate_many(jobs, CLUSTER, tmp_path)[0].id == artifacts[0].id
    assert len(calls) == 1  # all was found
    assert not list(tmp_path.glob(".array-*"))
    assert not [job.work for job in jobs if job.work.exists()]


def test_what_was_finished_before_a_failure_is_kept(
    jobs: list[EvaluateJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_fails(found: list[EvaluateJob]) -> None:
        done(found[0])
        raise WorkerFailed("task 1 failed", 1)

    calls = cluster(monkeypatch, one_fails)
    with pytest.raises(WorkerFailed):
        evaluate_many(jobs, CLUSTER, tmp_path)
    assert [job.evaluations[0].output.exists() for job in jobs] == [True, False, False]
    with pytest.raises(WorkerFailed):
        evaluate_many(jobs, CLUSTER, tmp_path)
    assert [call["jobs"] for call in calls] == [jobs, jobs[1:]]


@pytest.mark.parametrize("again", ["more models", "the same", "one of them", "one of them, in an array"])
def test_an_array_of_a_killed_caller_writes_beside_no_other(
    jobs: list[EvaluateJob],
    bench: Bench,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    again: str,
) -> None:
    module = bench.write("waits", "import time; time.sleep(300)")
    left: list[Handle] = []

    def killed(_: str, file: Path, run_dir: Path, **__: Any) -> None:
        left.append(LocalLauncher().submit(WorkerSpec(module, file, run_dir, ComputeProfile())))
        raise KeyboardInterrupt  # the worker goes on: nobody cancels it

    monkeypatch.setattr(array, "run_worker", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate_many(jobs[:2], CLUSTER, bench.root)
    assert living(left[0].token)

    class Reached(Exception):
        pass

    def reached(_: str, file: Path, run_dir: Path, **__: Any) -> None:
        same = again == "the same"
        assert bool(living(left[0].token)) == same, "watched" if same else "two would write to one folder"
        raise Reached

    monkeypatch.setattr(array, "run_worker", reached)
    monkeypatch.setattr(run, "run_worker", reached)
    monkeypatch.setattr(LocalLauncher, "outlives_caller", True)
    calls: dict[str, Callable[[], object]] = {
        "more models": lambda: evaluate_many(jobs, CLUSTER, bench.root),
        "the same": lambda: evaluate_many(jobs[:2], CLUSTER, bench.root),
        "one of them": lambda: evaluate(jobs[0]),
        "one of them, in an array": lambda: evaluate_many(jobs[1:2], CLUSTER, bench.root),
    }
    with pytest.raises(Reached):
        calls[again]()
    for handle in left:
        LocalLauncher().cancel(handle)


def test_an_array_starts_beside_no_worker_of_a_killed_caller(
    jobs: list[EvaluateJob],
    bench: Bench,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = bench.write("waits", "import time; time.sleep(300)")
    handle = LocalLauncher().submit(WorkerSpec(module, bench.job, jobs[1].work, ComputeProfile()))
    calls = cluster(monkeypatch, lambda found: [done(job) for job in found])
    evaluate_many(jobs, CLUSTER, bench.root)
    assert (len(calls), living(handle.token)) == (1, [])


def test_a_task_takes_its_turns_and_leaves_out_what_is_done(
    jobs: list[EvaluateJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[Path] = []
    monkeypatch.setattr(array_worker, "score_all", lambda job, log: scored.append(job.work))
    (tmp_path / "job.json").write_text(Jobs(jobs=tuple(jobs)).model_dump_json())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAMP_TASK", "0")
    monkeypatch.setenv("PAMP_TASKS", "2")
    assert array_worker.main(tmp_path / "job.json") == 0
    assert scored == [jobs[0].work, jobs[2].work]
    scored.clear()
    done(jobs[2])
    assert array_worker.main(tmp_path / "job.json") == 0
    assert scored == [jobs[0].work]


@pytest.mark.parametrize("error", [InputError("its weights are gone"), KeyError("its weights are gone")])
def test_a_model_that_cannot_be_scored_keeps_no_other_one_waiting(
    error: Exception, jobs: list[EvaluateJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[Path] = []

    def score(job: EvaluateJob, _: object) -> None:
        if job.work == jobs[0].work:
            raise error
        scored.append(job.work)

    monkeypatch.setattr(array_worker, "score_all", score)
    (tmp_path / "job.json").write_text(Jobs(jobs=tuple(jobs)).model_dump_json())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAMP_TASK", "0")
    monkeypatch.setenv("PAMP_TASKS", "1")
    assert array_worker.main(tmp_path / "job.json") == 1
    assert scored == [jobs[1].work, jobs[2].work]
    assert "its weights are gone" in (tmp_path / "events-0.jsonl").read_text()


def test_a_full_disk_ends_a_task(jobs: list[EvaluateJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(array_worker, "score_all", full)
    (tmp_path / "job.json").write_text(Jobs(jobs=tuple(jobs)).model_dump_json())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAMP_TASK", "0")
    monkeypatch.setenv("PAMP_TASKS", "1")
    with pytest.raises(OSError, match="No space left"):
        array_worker.main(tmp_path / "job.json")


def test_an_array_needs_a_cluster(jobs: list[EvaluateJob], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a profile of a cluster"):
        evaluate_many(jobs, ComputeProfile(), tmp_path)


def test_the_command_takes_a_profile_for_keys_only(tiny_project: Project) -> None:
    command = ["evaluate", "--project", str(tiny_project.root), "--profile", "local", "--suite", "sums"]
    refused = CliRunner().invoke(pamp, [*command, str(tiny_project.data / "models/imported")])
    assert (refused.exit_code, "--profile is for checkpoint keys" in refused.output) == (2, True)
    several = CliRunner().invoke(pamp, [*command, "nodir", "nodir2"])
    assert (several.exit_code, "nodir: no such directory; as a checkpoint key" in several.output) == (1, True)
