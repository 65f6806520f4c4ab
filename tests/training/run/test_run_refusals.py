"""What a run refuses before its worker starts."""

import shutil

import pytest

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import WorkerFailed
from pamp_pipelines.lake.manifest import ArtifactRef
from pamp_pipelines.training.footprint import checkpoint_bytes
from pamp_pipelines.training.resume import ResumeRefused, changes
from pamp_pipelines.training.space import TooLittleSpace

OTHER_SHARDS = ArtifactRef(kind="tokenized_shards", id="a" * 64, content="f" * 64)


def free(monkeypatch, count):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=count))


def test_a_run_without_room_for_two_saves_does_not_start(bench, monkeypatch):
    job = bench.job()
    size = checkpoint_bytes(job)
    free(monkeypatch, 2 * size - 1)
    with pytest.raises(TooLittleSpace, match=r"v0001: .* GB are free; a save of model/config/v0001 takes .* make room"):
        bench.train(job)
    assert bench.said("started") == []
    free(monkeypatch, 2 * size)
    assert bench.train(job).manifest.stats["kept_steps"] == [5, 10]


def test_the_checkpoint_that_the_next_replaces_is_room_for_it(bench, monkeypatch):
    bench.plan(at=5, do="die")
    with pytest.raises(WorkerFailed):
        bench.train()
    assert bench.steps() == [2, 4]
    free(monkeypatch, checkpoint_bytes(bench.job()) - 1)
    with pytest.raises(TooLittleSpace):
        bench.train()
    free(monkeypatch, checkpoint_bytes(bench.job()))
    assert bench.train().manifest.stats["resumed_from"] == 4


def test_checkpoints_of_another_run_are_not_resumed_from_and_what_changed_is_named(bench):
    bench.plan(at=7, do="die")
    job = bench.job()
    with pytest.raises(WorkerFailed):
        bench.train(job)
    before, steps = (job.run_dir / "job.json").read_text(), bench.steps()
    other = bench.job(
        inputs=(OTHER_SHARDS, *job.inputs[1:]),
        sequence_length=16,
        eod_id=1,
        hf_config=job.hf_config | {"rms_norm_eps": 1e-5},
        parallelism={"expert": 2},
    )
    with pytest.raises(ResumeRefused) as refused:
        bench.train(other)
    for said in (
        f"data (content of the shards): ['{'b' * 12}'] -> ['{'f' * 12}']",
        "sequence_length: 8 -> 16",
        "tokenizer (end-of-document token): 0 -> 1",
        "architecture (config.json): rms_norm_eps None -> 1e-05",
        "parallelism.expert: 1 -> 2",
    ):
        assert said in str(refused.value)
    assert (job.run_dir / "job.json").read_text() == before
    assert bench.steps() == steps  # nothing was touched
    assert bench.train(job).manifest.stats["resumed_from"] == 6


def test_another_layout_and_other_cadences_are_no_other_run(bench):
    job = bench.job()
    moved = bench.job(
        world_size=4,
        micro_batch_size=2,
        parallelism={"tensor": 2},
        recompute="full",
        checkpoint={"interval": 5, "asynchronous": True, "minutes": 3.0},
        validation={"interval": 2},
        limits={"loss_spike": 1.0},
    )
    assert changes(job, moved) == []
    assert changes(job, job.model_copy(update={"iterations": 20})) == ["iterations: 10 -> 20"]


def test_the_way_an_attempt_starts_is_recorded(bench, checkpoint):
    job = bench.job()
    assert (job.mode(None), job.mode(0), job.mode(4)) == ("scratch", "scratch", "resume")
    weights = bench.root / "import"
    assert bench.job(pretrained_checkpoint=weights).mode(None) == "continue"
    assert bench.train(job).manifest.stats["mode"] == "scratch"


def test_a_run_that_stands_still_is_ended_and_goes_on_afterwards(bench):
    bench.plan(at=7, do="hang")
    job = bench.job(profile=ComputeProfile(grace_s=0.5, threads_per_process=1, stall_timeout_s=4.0))
    with pytest.raises(WorkerFailed, match="no event"):
        bench.train(job)
    bench.no_plan()
    assert bench.train(job).manifest.stats["resumed_from"] == 6
