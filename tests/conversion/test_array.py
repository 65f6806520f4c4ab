"""Buckets of a conversion written by the tasks of an array: the same files, finished ones used again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.conversion import array, array_worker, buckets, export_buckets, exporter, gather, importer
from pamp_pipelines.conversion.array import write_export_on, write_import_on
from pamp_pipelines.conversion.buckets import buckets_dir
from pamp_pipelines.conversion.export_work import run_export
from pamp_pipelines.conversion.import_work import run_import
from pamp_pipelines.conversion.importer import plan_of
from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.conversion.stage import work_dir
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, WorkerFailed
from pamp_pipelines.lake.events import Event, EventLog, ignore, read_events
from pamp_pipelines.launchers.base import WorkerSpec
from pamp_pipelines.launchers.local import LocalLauncher
from tests.launchers.conftest import Bench, bench, living  # noqa: F401

CLUSTER = ComputeProfile(launcher="slurm", nodes=2, processes_per_node=1)


@pytest.fixture
def job(build: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImportJob:
    """An import of several small buckets."""
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 20_000)
    source = build("llama", False, "bfloat16")
    return ImportJob(name="m", id="1" * 64, output=tmp_path / "out", source=source, workers=1, chunk_bytes=3000)


def cluster(monkeypatch: pytest.MonkeyPatch, fail: Callable[[int], None] = lambda task: None) -> list[dict[str, Any]]:
    """Have the tasks of an array run here, one after another; returns what each call was asked for."""
    calls: list[dict[str, Any]] = []

    def run_worker(module: str, file: Path, run_dir: Path, **options: Any) -> None:
        calls.append({"text": file.read_text(), **options})
        monkeypatch.setenv("PAMP_TASKS", str(options["tasks"]))
        monkeypatch.chdir(run_dir)
        for task in range(options["tasks"]):
            fail(task)
            monkeypatch.setenv("PAMP_TASK", str(task))
            if (status := array_worker.main(file)) != 0:
                raise WorkerFailed(f"task {task} failed", status)
            for event in read_events(run_dir / f"events-{task}.jsonl")[0]:
                options["on_event"](event)

    monkeypatch.setattr(array, "run_worker", run_worker)
    return calls


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_an_import_takes_over_what_an_array_wrote(
    job: ImportJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = cluster(monkeypatch)
    seen: list[Event] = []
    plan = plan_of(job)
    write_import_on(CLUSTER, job, plan, seen.append)
    written = {file.name: file.stat().st_ino for file in buckets_dir(job).glob("*.distcp")}
    assert len(written) > 4
    assert [call["tasks"] for call in calls] == [2]
    assert (seen[-1].kind, seen[-1].data["done_bytes"]) == ("progress", plan.bytes)
    assert not list(tmp_path.glob(".out.*.array"))
    run_import(job, tmp_path / "there", EventLog(tmp_path / "events.jsonl"))
    release = tmp_path / "there/checkpoint/release"
    assert {name: (release / name).stat().st_ino for name in written} == written  # not written again
    here = job.model_copy(update={"output": tmp_path / "other"})
    run_import(here, tmp_path / "here", EventLog(tmp_path / "events.jsonl"))
    assert files(release) == files(tmp_path / "here/checkpoint/release")


def test_an_export_takes_over_what_an_array_wrote(
    job: ImportJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    run_import(job, tmp_path / "imported", log)
    monkeypatch.setattr(export_buckets, "_BUCKET_BYTES", 20_000)

    def export(name: str) -> ExportJob:
        imported = tmp_path / "imported"
        checkpoint, template = imported / "checkpoint/release", imported / "hf_template"
        return ExportJob(
            name=name, id="3" * 64, output=tmp_path / name, workers=1, checkpoint=checkpoint, template=template
        )

    here, there = export("here"), export("there")
    for target in ("from_here", "from_there"):
        (tmp_path / target).mkdir()
    run_export(here, tmp_path / "from_here", log)
    calls = cluster(monkeypatch)
    seen: list[Event] = []
    _, _, plan = exporter.plan_of(there)
    write_export_on(CLUSTER, there, plan, seen.append)
    assert [call["tasks"] for call in calls] == [2]
    assert seen[-1].data["done_bytes"] == plan.weight_bytes
    other_host = there.model_copy(update={"workers": there.workers + 5, "memory_bytes": 2**30})
    write_export_on(CLUSTER, other_host, plan, ignore)
    assert calls[0]["text"] == calls[1]["text"]  # else a call from another login node ended the array that runs
    assert len(list(buckets_dir(there).glob("*.json"))) > 4
    monkeypatch.setattr(gather, "_write", lambda *_: pytest.fail("written again"))
    run_export(there, tmp_path / "from_there", log)
    weights = "model.safetensors"
    assert (tmp_path / "from_there" / weights).read_bytes() == (tmp_path / "from_here" / weights).read_bytes()


def test_buckets_of_a_failed_array_are_used_by_the_next(job: ImportJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def second_task_is_lost(task: int) -> None:
        if task == 1:
            raise WorkerFailed("task 1 was killed", -9)

    cluster(monkeypatch, second_task_is_lost)
    with pytest.raises(WorkerFailed):
        write_import_on(CLUSTER, job, plan_of(job), ignore)
    folder = buckets_dir(job)
    first = {file.name: file.stat().st_ino for file in folder.glob("*.distcp")}
    cluster(monkeypatch)
    write_import_on(CLUSTER, job, plan_of(job), ignore)
    now = {file.name: file.stat().st_ino for file in folder.glob("*.distcp")}
    assert 0 < len(first) < len(now)
    assert {name: now[name] for name in first} == first


def test_a_bad_source_is_no_reason_for_a_retry(job: ImportJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    assert job.source is not None
    shutil.copytree(job.source, source)
    moved = job.model_copy(update={"source": source})
    plan = plan_of(moved)
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5000])
    cluster(monkeypatch)
    with pytest.raises(InputError, match="task"):
        write_import_on(CLUSTER, moved, plan, ignore)


def test_another_model_at_the_same_place_sweeps_what_was_left(job: ImportJob, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = cluster(monkeypatch)
    write_import_on(CLUSTER, job, plan_of(job), ignore)
    (buckets_dir(job).with_suffix(".array")).mkdir()
    other = job.model_copy(update={"id": "2" * 64})
    write_import_on(CLUSTER, other, plan_of(other), ignore)
    assert not buckets_dir(job).exists()
    assert not buckets_dir(job).with_suffix(".array").exists()
    assert len(calls) == 2


def test_a_conversion_leaves_alone_what_one_into_a_longer_name_writes(
    job: ImportJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(monkeypatch)
    theirs = [tmp_path / f".out.5.{'2' * 16}.{ending}" for ending in ("buckets", "array")]
    ours = [tmp_path / f".out.{'2' * 16}.{ending}" for ending in ("buckets", "array")]
    for folder in theirs + ours:
        folder.mkdir()
    write_import_on(CLUSTER, job, plan_of(job), ignore)
    run_import(job, tmp_path / "there", EventLog(tmp_path / "events.jsonl"))
    assert [folder.is_dir() for folder in theirs + ours] == [True, True, False, False]


@pytest.mark.parametrize("left", ["array", "run.partial"])
@pytest.mark.parametrize("stage", ["import", "export"])
def test_a_conversion_here_ends_what_a_killed_caller_left(
    job: ImportJob,
    bench: Bench,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    left: str,
) -> None:
    """It would write the same buckets: one of two unlinks what the other is writing."""
    folder = buckets_dir(job).with_suffix(".array") if left == "array" else work_dir(job.output)
    module = bench.write("waits", "import time; time.sleep(300)")
    handle = LocalLauncher().submit(WorkerSpec(module, bench.job, folder, ComputeProfile()))

    class Reached(Exception):
        pass

    def run_stage(*_: Any) -> None:
        assert not living(handle.token)
        assert not folder.exists()
        raise Reached

    seen: list[Event] = []
    if stage == "import":
        monkeypatch.setattr(importer, "run_stage", run_stage)
        with pytest.raises(Reached):
            importer.import_hf(job, seen.append)
    else:
        monkeypatch.setattr(exporter, "run_stage", run_stage)
        monkeypatch.setattr(exporter, "plan_of", lambda _: (None, None, None))
        export = ExportJob(name="m", id=job.id, output=job.output, checkpoint=bench.root, template=bench.root)
        monkeypatch.setattr(exporter, "require_replaceable", lambda *_: None)
        with pytest.raises(Reached):
            exporter.export_hf(export, seen.append)
    assert [event.data["message"] for event in seen if "left running" in event.data.get("message", "")]
