"""The caller's side of training: resume, kept checkpoints, verdict; the worker is a stand-in."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dagster import TableMetadataValue

from pamp_pipelines.errors import InputError, RunDiverged, WorkerFailed
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.orchestration.metadata import flatten
from pamp_pipelines.orchestration.values import to_metadata
from pamp_pipelines.training import extend, run
from pamp_pipelines.training.checkpoints import tracked_iteration
from pamp_pipelines.training.lease import LeaseTaken, lease
from pamp_pipelines.training.saved import Saved


def test_a_run_keeps_what_was_asked_for_and_ends_with_a_manifest(bench):
    job = bench.job()
    artifact = bench.train(job)
    assert read_artifact(job.run_dir, verify="hash").manifest == artifact.manifest
    assert artifact.kind == "pretrained_checkpoint"
    assert artifact.id == job.id
    assert [ref.kind for ref in artifact.manifest.inputs] == ["tokenized_shards", "megatron_checkpoint"]
    stats = artifact.manifest.stats
    assert stats["kept_steps"] == [5, 10]
    assert stats["tokens"] == 10 * 4 * 8
    assert (stats["first_loss"], stats["final_loss"], stats["validation_loss"]) == (7.9, 7.0, 7.0)
    assert stats["resumed_from"] is None
    assert {c.name: c.passed for c in artifact.manifest.checks} == {
        "tracker_reached": True,
        "kept_saved": True,
        "loss_finite": True,
        "loss_spikes": True,
        "grad_norm_growth": True,
        "loss_fell": True,
        "validation_gap": True,
    }
    # 5 and 10 are kept; 8 and 10 are the newest two resume points
    assert bench.steps() == [5, 8, 10]


def test_a_kept_checkpoint_is_announced_after_its_record_is_there(bench):
    seen = []

    def on_event(event):
        if event.kind == "checkpoint":
            record = json.loads((job.run_dir / f"kept/{event.data['step']:07d}.json").read_text())
            seen.append((event.data["key"], record["content"] == event.data["content"], Path(event.data["path"]).name))

    job = bench.job()
    run.train(job, on_event, worker=bench.worker)
    assert seen == [
        ("model/config/v0001/0000005", True, "iter_0000005"),
        ("model/config/v0001/0000010", True, "iter_0000010"),
    ]


def test_a_finished_version_is_returned_without_a_worker_and_announced_again(bench):
    first = bench.train()
    again = bench.train()
    assert again.manifest == first.manifest
    assert bench.said("started") == []
    assert [data["step"] for data in bench.said("checkpoint")] == [5, 10]


@pytest.mark.parametrize(
    ("plan", "resumed"),
    [
        ({"at": 7, "do": "die"}, 6),  # in the middle: at the last save
        ({"at": 6, "do": "die in save"}, 5),  # no .metadata
        ({"at": 6, "do": "die before tracker"}, 6),  # whole, but the tracker names 5: nothing is lost
        ({"at": 5, "do": "die before event"}, 5),  # a kept one that nobody heard of
        ({"at": 10, "do": "die before event"}, 10),  # complete: nothing is left to train
        ({"at": 1, "do": "die"}, None),  # before the first save
    ],
)
def test_a_killed_run_resumes_and_ends_as_if_nothing_had_happened(bench, plan, resumed):
    bench.plan(**plan)
    with pytest.raises(WorkerFailed, match="killed by signal 9"):
        bench.train()
    assert not (bench.job().run_dir / "manifest.json").exists()
    bench.no_plan()
    artifact = bench.train()
    assert artifact.manifest.stats["resumed_from"] == resumed
    assert bench.iterations() == list(range(1, 11))
    assert artifact.manifest.stats["kept_steps"] == [5, 10]
    assert [data["step"] for data in bench.said("checkpoint")] == [5, 10]
    assert {c.name: c.passed for c in artifact.manifest.checks}["tracker_reached"]
    assert (bench.said("started") == []) == (resumed == 10)


@pytest.mark.parametrize(
    ("damage", "resumed"),
    [
        (lambda checkpoints: (checkpoints / "latest_checkpointed_iteration.txt").write_text(""), 6),
        (lambda checkpoints: (checkpoints / "iter_0000006/.metadata").write_bytes(b"\x80\x02garbage"), 5),
        (lambda checkpoints: (checkpoints / "iter_0000006/__0_0.distcp").write_bytes(b"half"), 5),
        (lambda checkpoints: (checkpoints / "iter_0000006/__0_0.distcp").unlink(), 5),
        (lambda checkpoints: (checkpoints / "iter_0000006/metadata.json").unlink(), 5),
        (lambda checkpoints: _flip_a_bit(checkpoints / "iter_0000006/__0_0.distcp"), 5),
    ],
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_loudly(bench, damage, resumed):
    bench.plan(at=7, do="die")
    with pytest.raises(WorkerFailed):
        bench.train()
    damage(bench.job().checkpoints_dir)
    artifact = bench.train()
    assert artifact.manifest.stats["resumed_from"] == resumed
    assert any(f"resumes from step {resumed}" in data["message"] for data in bench.said("warning"))
    assert bench.iterations() == list(range(1, 11))


def test_a_kept_checkpoint_that_is_damaged_is_made_and_recorded_again(bench):
    bench.plan(at=6, do="die")
    with pytest.raises(WorkerFailed):
        bench.train()
    job = bench.job()
    record = job.run_dir / "kept/0000005.json"
    before = record.stat().st_mtime_ns
    _flip_a_bit(job.checkpoints_dir / "iter_0000005/__0_0.distcp", step=5)
    assert bench.train().manifest.stats["resumed_from"] == 4
    assert record.stat().st_mtime_ns > before
    assert "step 5 was kept and is lost; it is trained again" in [data["message"] for data in bench.said("warning")]


def _flip_a_bit(file, step=6):
    data = bytearray(file.read_bytes())
    place = data.index(step.to_bytes(4, "little") * 4)  # what the stand-in saves
    data[place] ^= 1
    file.write_bytes(data)


def test_a_damaged_record_is_written_anew_from_its_checkpoint(bench):
    job = bench.job()
    bench.plan(at=7, do="die")
    with pytest.raises(WorkerFailed):
        bench.train(job)
    record = job.run_dir / "kept/0000005.json"
    before = json.loads(record.read_text())
    record.write_text("{")
    bench.train(job)
    assert any(f"{record}: was damaged" in data["message"] for data in bench.said("warning"))
    after = json.loads(record.read_text())
    assert [after[key] for key in ("id", "content", "files", "stats")] == [
        before[key] for key in ("id", "content", "files", "stats")
    ]


def test_a_damaged_record_without_its_checkpoint_says_what_to_do(bench):
    job = bench.job()
    bench.plan(at=7, do="die")
    with pytest.raises(WorkerFailed):
        bench.train(job)
    (job.run_dir / "kept/0000005.json").write_text("{")
    shutil.rmtree(job.checkpoints_dir / "iter_0000005")
    with pytest.raises(InputError, match=r"0000005.json: not a readable manifest .* a copy\. .* it can be deleted"):
        bench.train(job)


def test_a_damaged_job_file_says_what_to_do(bench):
    job = bench.job()
    bench.plan(at=7, do="die")
    with pytest.raises(WorkerFailed):
        bench.train(job)
    (job.run_dir / "job.json").write_text("{")
    with pytest.raises(InputError, match=r"(?s)job.json: not a training job.* from a copy, or .*--fresh"):
        bench.train(job)


def test_without_any_complete_checkpoint_the_run_starts_again_loudly(bench):
    bench.plan(at=3, do="die")
    with pytest.raises(WorkerFailed):
        bench.train()
    (bench.job().checkpoints_dir / "iter_0000002/.metadata").unlink()
    artifact = bench.train()
    assert artifact.manifest.stats["resumed_from"] is None
    assert any("starts again at step 0" in data["message"] for data in bench.said("warning"))
    assert bench.iterations() == list(range(1, 11))


def test_a_kept_checkpoint_stays_when_the_run_goes_on_with_another_cadence(bench):
    """Whoever exports or scores it may not have come to it yet."""
    bench.plan(at=9, do="die")
    with pytest.raises(WorkerFailed):
        bench.train(bench.job(cadence=(2, 10)))
    assert bench.steps() == [2, 6, 8]
    bench.train(bench.job(cadence=(10,)))
    assert bench.steps() == [2, 8, 10]
    assert {data["step"] for data in bench.said("checkpoint")} == {2, 10}


def test_the_group_reads_what_a_run_leaves_whatever_the_umask(bench):
    before = os.umask(0o077)
    try:
        artifact = bench.train()
    finally:
        os.umask(before)
    runs = artifact.path.parents[2]
    assert runs.name == "runs"
    for path in (runs, *runs.rglob("*")):
        # what lock files hold is nobody else's business
        if not path.name.startswith("."):
            wanted = 0o050 if path.is_dir() else 0o040
            assert path.stat().st_mode & wanted == wanted, path


def test_status_0_is_not_success(bench):
    bench.plan(at=7, do="exit 0")
    with pytest.raises(WorkerFailed, match="at step 6 of 10"):
        bench.train()
    assert not (bench.job().run_dir / "manifest.json").exists()
    assert bench.train().manifest.stats["resumed_from"] == 6


def test_a_diverged_run_is_no_case_for_a_retry(bench):
    bench.plan(at=2, do="exit 17")
    with pytest.raises(RunDiverged, match="diverged; lower the learning rate"):
        bench.train()


def test_a_result_that_another_device_may_not_repeat_is_a_case_for_a_retry(bench):
    bench.plan(at=5, do="exit 16")
    with pytest.raises(WorkerFailed, match="exit status 16") as failed:
        bench.train()
    assert not isinstance(failed.value, RunDiverged)
    bench.no_plan()
    assert bench.train().manifest.stats["resumed_from"] == 4


def test_a_job_that_the_worker_refuses_is_no_case_for_a_retry(bench):
    bench.plan(at=1, do="exit 2")
    with pytest.raises(InputError, match="the worker's own reason"):
        bench.train()


def test_step_0_of_an_import_points_to_the_import(bench, checkpoint):
    weights = bench.root / "lake/checkpoints/model/cccccccccccc/checkpoint"
    checkpoint(weights / "release")
    job = bench.job(pretrained_checkpoint=weights)
    artifact = bench.train(job)
    assert artifact.manifest.stats["kept_steps"] == [0, 5, 10]
    first = bench.said("checkpoint")[0]
    assert (first["key"], first["content"], first["path"]) == (
        "model/config/v0001/0000000",
        "d" * 64,
        str(weights / "release"),
    )
    assert bench.events[0].kind == "checkpoint"  # it can be scored while the run goes on
    record = json.loads((job.run_dir / "kept/0000000.json").read_text())
    assert [ref["kind"] for ref in record["inputs"]] == ["megatron_checkpoint"]
    assert not Path(record["location"]).is_absolute()


def test_a_damaged_record_of_step_0_is_written_anew(bench, checkpoint):
    imported = bench.root / "lake/checkpoints/model/cccc/checkpoint"
    checkpoint(imported / "release")
    job = bench.job(pretrained_checkpoint=imported)
    bench.plan(at=7, do="die")
    with pytest.raises(WorkerFailed):
        bench.train(job)
    record = job.run_dir / "kept/0000000.json"
    before = json.loads(record.read_text())
    record.write_text("{")
    bench.train(job)
    assert json.loads(record.read_text())["content"] == before["content"]


def test_a_record_that_cannot_be_written_yet_ends_no_training(bench, monkeypatch):
    real, calls = run.record_saved, []

    def full_disk(job, step):
        calls.append(step)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return real(job, step)

    monkeypatch.setattr(run, "record_saved", full_disk)
    artifact = bench.train()
    assert any("No space left" in data["message"] for data in bench.said("warning"))
    assert artifact.manifest.stats["kept_steps"] == [5, 10]


def test_a_longer_run_goes_on_with_a_shorter_one_of_the_same_horizon(bench):
    shorter = bench.train(bench.job(horizon=20))
    longer = bench.job(
        run_dir=bench.job().run_dir.with_name("v0002"),
        name="model/config/v0002",
        id="f" * 64,
        iterations=14,
        cadence=(5, 10, 14),
        horizon=20,
        extends=shorter.path,
    )
    artifact = bench.train(longer)
    stats = artifact.manifest.stats
    assert (stats["resumed_from"], stats["mode"], stats["extends"]) == (10, "resume", "v0001")
    assert stats["kept_steps"] == [5, 10, 14]
    assert [json.loads(line)["iteration"] for line in longer.metrics_path.read_text().splitlines()] == [*range(1, 15)]
    assert [data["key"] for data in bench.said("checkpoint")] == [
        f"model/config/v0002/{step:07d}" for step in (5, 10, 14)
    ]
    # what was linked is not shared: the shorter run is as it was
    assert read_artifact(shorter.path, verify="hash").manifest == shorter.manifest
    assert bench.steps() == [5, 8, 10]


def test_the_data_phases_of_a_run_are_shown_with_it(bench):
    shorter = bench.train()
    phases = [{"first_sample": 0, "samples": 40, "seed": 1}, {"first_sample": 40, "samples": 8, "seed": 9}]
    longer = bench.job(
        run_dir=bench.job().run_dir.with_name("v0002"), iterations=12, phases=phases, extends=shorter.path
    )
    stats = bench.train(longer).manifest.stats
    assert (stats["extends"], stats["resumed_from"], stats["phases"]) == ("v0001", 10, phases)
    assert isinstance(to_metadata(flatten(stats))["phases"], TableMetadataValue)


@pytest.mark.parametrize("links", [0, 1, 2])
def test_a_process_killed_while_it_links_a_run_leaves_nothing_out(bench, monkeypatch, links):
    shorter = bench.train(bench.job(horizon=20))
    longer = bench.job(
        run_dir=bench.job().run_dir.with_name("v0002"),
        iterations=14,
        cadence=(5, 10, 14),
        horizon=20,
        extends=shorter.path,
    )
    link, done = extend._link, []

    def killed(source, target):
        if len(done) == links:
            raise KeyboardInterrupt
        link(source, target)
        done.append(target.name)

    with monkeypatch.context() as patched:
        patched.setattr(extend, "_link", killed)
        if links == 2:  # both are there, the tracker is not
            patched.setattr(extend, "write_text", lambda path, text: None)
            extend.seed(longer, print)
        else:
            with pytest.raises(KeyboardInterrupt):
                extend.seed(longer, print)
    assert len(done) == links
    assert Saved(longer.checkpoints_dir).tracker() is None
    if links:  # half of a directory under a final name, as a copy of a file system without links
        (longer.checkpoints_dir / done[-1] / ".metadata").unlink()
    extend.seed(longer, print)
    ours = Saved(longer.checkpoints_dir)
    assert (ours.steps(), ours.tracker()) == ([5, 10], 10)
    assert [ours.problem(step) for step in ours.steps()] == [None, None]
    ours.remove(5)
    extend.seed(longer, print)
    assert ours.steps() == [10], "it has begun"


def test_a_run_whose_beginning_is_gone_starts_at_its_own_beginning(bench):
    shorter = bench.train(bench.job(horizon=20))
    shutil.rmtree(bench.job().checkpoints_dir / "iter_0000010")
    longer = bench.job(run_dir=bench.job().run_dir.with_name("v0002"), iterations=12, horizon=20, extends=shorter.path)
    assert bench.train(longer).manifest.stats["resumed_from"] is None
    assert any("its last checkpoint is gone" in data["message"] for data in bench.said("warning"))


def test_one_writer_per_version(bench):
    job = bench.job()
    with lease(job.run_dir), pytest.raises(LeaseTaken, match=f"process {os.getpid()} on .* trains this version"):
        bench.train(job)


def test_a_killed_caller_keeps_the_lease_until_its_worker_is_dead_then_a_retry_goes_on(bench):
    """Two trainings never write to one version, and the second attempt does not fail for being early."""
    bench.plan(at=7, do="hang")
    job = bench.job()
    file = bench.root / "job.json"
    file.write_text(job.model_dump_json())
    script = (
        "import sys; from pathlib import Path\n"
        "from pamp_pipelines.launchers import run_worker\n"
        "from pamp_pipelines.training import run\nfrom pamp_pipelines.training.job import read_job\n"
        "run.run_worker = lambda *a, **o: run_worker(*a, **(o | {'nproc': None}))\n"
        "run.train(read_job(Path(sys.argv[1])), worker='fake_trainer')\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script, str(file)])
    deadline = time.monotonic() + 60
    while tracked_iteration(job.checkpoints_dir) != 6:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    caller.kill()
    bench.no_plan()
    artifact = bench.train(job)  # at once: the old worker still lives
    caller.wait()
    assert artifact.manifest.stats["resumed_from"] == 6
    assert bench.iterations() == list(range(1, 11))


@pytest.mark.slow
def test_the_worker_runs_under_torchrun_with_the_jobs_processes(bench, monkeypatch):
    monkeypatch.setattr(run, "run_worker", run_worker)
    bench.worker = "two_ranks"
    (bench.root / "modules/two_ranks.py").write_text(
        "import os, sys, time\n"
        "assert os.environ['WORLD_SIZE'] == '2', os.environ['WORLD_SIZE']\n"
        "sys.exit(2) if os.environ['RANK'] == '1' else time.sleep(60)\n"
    )
    with pytest.raises(InputError, match="two_ranks rank 1: exit status 2"):
        bench.train(bench.job(world_size=2))
