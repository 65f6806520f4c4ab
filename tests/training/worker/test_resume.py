"""A run that is killed or stopped and started again ends as one that was left alone, bit for bit, with dropout on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from pamp_pipelines.lake.events import read_events
from pamp_pipelines.training.blend import read_realised
from pamp_pipelines.training.extend import seed
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.kept import record_saved
from pamp_pipelines.training.saved import Saved
from pamp_pipelines.training.worker import EXIT_INCOMPLETE

pytestmark = pytest.mark.slow

STEPS = 40
"""Enough for a signal to arrive before the end."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {"parallelism": {"distributed_optimizer": False}},
    "distributed": {"parallelism": {"distributed_optimizer": True}, "precision": "bf16"},
}
KILLED: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    # the run that it must equal saves synchronously
    "distributed, asynchronous saves": ("distributed", {"checkpoint": {"interval": 10, "asynchronous": True}}),
}


@pytest.fixture(scope="module")
def uninterrupted(trainer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainJob]:
    """One run for each optimizer."""
    jobs = {name: _job(trainer, tmp_path_factory.mktemp(name), name) for name in OPTIMIZERS}
    trainer.finish(*jobs.values())
    return jobs


def _job(trainer: Any, run_dir: Path, optimizer: str, /, **changes: Any) -> TrainJob:
    fields: dict[str, Any] = {
        "iterations": STEPS,
        "checkpoint": {"interval": 10},
        "validation": {"interval": 20},
        "dropout": {"hidden": 0.1, "attention": 0.1},
        **OPTIMIZERS[optimizer],
    }
    return trainer.job(run_dir, **(fields | changes))


@pytest.mark.parametrize("way", KILLED)
def test_a_killed_run_goes_on_exactly(
    way: str, trainer: Any, uninterrupted: dict[str, TrainJob], tmp_path: Path
) -> None:
    optimizer, changes = KILLED[way]
    job = _job(trainer, tmp_path, optimizer, **changes)
    run = trainer.start(job)
    run.wait_for(lambda: 15 in run.steps())
    run.kill()
    killed_at = run.steps()[-1]
    resumed_from = Saved(job.checkpoints_dir).sweep(print)
    index = _break_index(job)
    assert resumed_from in (10, 20, 30)
    assert 15 <= killed_at < STEPS
    trainer.finish(job)
    events, _ = read_events(job.events_path)
    assert [event.data["iteration"] for event in events if event.kind == "started"] == [0, resumed_from]
    _assert_equal(trainer, job, uninterrupted[optimizer])
    assert {path.suffix for path in index.iterdir()} == {".npy", ".txt"}


def test_the_data_could_not_be_written_to(trainer: Any, uninterrupted: dict[str, TrainJob]) -> None:
    """All runs here read shards from a folder that they may not write into, and made their sample index elsewhere."""
    for target in (trainer.shards / "new", trainer.shards / "a_train.idx"):
        command = ["tee", "-a", str(target)]
        written = subprocess.run(command, preexec_fn=trainer.obey_permissions, capture_output=True, input=b"x")
        assert b"Permission denied" in written.stderr
    assert {path.suffix for path in trainer.shards.iterdir()} == {".bin", ".idx"}
    assert all(list((job.run_dir / "index").iterdir()) for job in uninterrupted.values())


def _break_index(job: TrainJob) -> Path:
    """Leave the sample index as if the process had been killed while building it; returns where it belongs."""
    (index,) = (job.run_dir / "index").iterdir()
    half_built = index.rename(index.with_name(f".{index.name}.building"))
    for file in half_built.glob("*shuffle_index.npy"):
        os.truncate(file, 10)
    return index


def test_a_stopped_run_saves_and_goes_on_exactly(
    trainer: Any, uninterrupted: dict[str, TrainJob], tmp_path: Path
) -> None:
    job = _job(trainer, tmp_path, "plain")
    run = trainer.start(job)
    run.wait_for(lambda: 3 in run.steps())
    (worker,) = [process for process in run.workers() if "pamp_pipelines.training.worker" in process.cmdline()]
    worker.terminate()
    assert run.wait() != 0
    saved = Saved(job.checkpoints_dir)
    stopped_at = saved.tracker()
    assert stopped_at is not None
    assert 3 <= stopped_at < STEPS
    assert saved.complete(stopped_at)
    events, _ = read_events(job.events_path)
    assert (events[-1].kind, events[-1].data["iteration"]) == ("failed", stopped_at)
    assert f"exitcode  : {EXIT_INCOMPLETE}" in run.log()
    trainer.finish(job)
    _assert_equal(trainer, job, uninterrupted["plain"])


def test_a_run_made_longer_up_to_its_horizon_ends_as_one_that_was_declared_so(
    trainer: Any, uninterrupted: dict[str, TrainJob], tmp_path: Path
) -> None:
    """The order of the data, the schedule, dropout and the optimizer go on as if there had been no end."""
    # an end off the interval of validations and saves
    shorter = _job(trainer, tmp_path / "v0001", "distributed", iterations=15, horizon=STEPS)
    trainer.finish(shorter)
    longer = _job(trainer, tmp_path / "v0002", "distributed", horizon=STEPS, extends=shorter.run_dir)
    seed(longer, print)
    trainer.finish(longer)
    events, _ = read_events(longer.events_path)
    assert [event.data["iteration"] for event in events if event.kind == "started"] == [15]
    _assert_equal(trainer, longer, uninterrupted["distributed"])


def test_a_killed_run_goes_on_exactly_in_a_new_data_phase(trainer: Any, tmp_path: Path) -> None:
    """A finished run without a horizon is made longer; the first phase is its own, and the second is another order."""
    schedule = {"optimizer": {"lr": 1e-2, "decay_style": "constant", "warmup_iterations": 2}}
    shorter = _job(trainer, tmp_path / "v0001", "distributed", iterations=15, **schedule)
    batch, other = shorter.global_batch_size, shorter.data_seed + 1
    ends = [(0, 15, shorter.data_seed), (15, STEPS, other)]
    phases = [{"first_sample": a * batch, "samples": (b - a) * batch, "seed": seed} for a, b, seed in ends]
    changes = {**schedule, "phases": phases}
    straight = _job(trainer, tmp_path / "v0002", "distributed", **changes)
    trainer.finish(shorter, straight)
    longer = _job(trainer, tmp_path / "v0003", "distributed", **changes, extends=shorter.run_dir)
    seed(longer, print)
    run = trainer.start(longer)
    run.wait_for(lambda: 25 in run.steps())
    run.kill()
    resumed_from = Saved(longer.checkpoints_dir).sweep(print)
    assert resumed_from in (20, 30)
    trainer.finish(longer)
    events, _ = read_events(longer.events_path)
    assert [event.data["iteration"] for event in events if event.kind == "started"] == [15, resumed_from]
    _assert_equal(trainer, longer, straight)
    losses = [[record["loss"] for record in trainer.records(job)] for job in (straight, shorter)]
    assert losses[0][:15] == losses[1]
    assert read_realised(longer) == read_realised(straight)
    assert sum(corpus["samples"] for corpus in read_realised(longer).values()) == STEPS * batch


def _assert_equal(trainer: Any, job: TrainJob, expected: TrainJob) -> None:
    assert trainer.records(job) == trainer.records(expected)
    ours, theirs = (_tensors(Saved(j.checkpoints_dir).dir(STEPS)) for j in (job, expected))
    assert ours.keys() == theirs.keys()
    assert any(key.startswith("optimizer.") for key in ours)
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    # two version directories, one run at one go and one that was resumed: the data version says that they are equal
    assert record_saved(job, STEPS).content == record_saved(expected, STEPS).content


def _tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Weights and optimizer state."""
    reader = dcp.FileSystemReader(checkpoint)
    described = reader.read_metadata().state_dict_metadata
    state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in described.items() if hasattr(m, "size")}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state
