"""The same training, divided among processes in different ways, from the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.lake.events import read_events
from pamp_pipelines.training.blend import read_realised
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.saved import Saved
from pamp_pipelines.training.windows import HeldOutWindows

pytestmark = pytest.mark.slow

LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor and sequence": {"tensor": 2, "sequence_parallel": True},
    "pipeline": {"pipeline": 2},
    "data, distributed optimizer, overlap": {
        "distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
    },
}

MICRO_BATCH = {"tensor and sequence": 1, "pipeline": 4, "data, distributed optimizer, overlap": 2}
"""Samples; one process alone takes two."""


@pytest.fixture(scope="module")
def weights(trainer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints to start from: of a run from scratch."""
    job = trainer.job(
        tmp_path_factory.mktemp("source"),
        iterations=3,
        checkpoint={"interval": 100},
        validation={"interval": 100},
        cadence=[2, 3],
    )
    trainer.finish(job)
    return job.checkpoints_dir


@pytest.fixture(scope="module")
def single(trainer: Any, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    """One process."""
    job = trainer.job(
        tmp_path_factory.mktemp("single"),
        pretrained_checkpoint=weights,
        parallelism={"distributed_optimizer": True},
    )
    trainer.finish(job)
    return job


def test_steps_of_the_cadence_and_the_last_are_saved(weights: Path) -> None:
    saved = Saved(weights)
    assert saved.steps() == [2, 3]
    assert all(saved.complete(step) for step in (2, 3))
    assert saved.tracker() == 3


def test_a_start_from_weights_begins_at_step_one_and_learns(trainer: Any, single: TrainJob, weights: Path) -> None:
    first, *records = trainer.records(single)
    before = trainer.records(TrainJob.model_validate_json((weights.parent / "job.json").read_text()))[-1]
    assert [record["iteration"] for record in records] == list(range(1, 9))
    assert records[-1]["loss"] < before["validation_loss"]
    # step 0 is validated too: the weights are the same, and so is every window
    assert (first["iteration"], "loss" in first) == (0, False)
    assert first["validation"] == before["validation"]
    assert single.checkpoints_dir.joinpath("latest_checkpointed_iteration.txt").read_text() == "8"


def test_every_held_out_token_is_measured(trainer: Any, single: TrainJob) -> None:
    from pamp_pipelines.tokenization.indexed import IndexedReader

    last = trainer.records(single)[-1]
    for shards in single.heldout:
        windows = HeldOutWindows(IndexedReader(shards.prefix).tokens, single.sequence_length)
        assert last["validation"][shards.corpus]["tokens"] == windows.predicted_tokens
    parts = last["validation"].values()
    mean = sum(part["loss"] * part["tokens"] for part in parts) / sum(part["tokens"] for part in parts)
    assert last["validation_loss"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_do_not_depend_on_the_layout(
    layout: str, trainer: Any, single: TrainJob, weights: Path, tmp_path: Path
) -> None:
    job = trainer.job(
        tmp_path / layout.replace(" ", "-"),
        pretrained_checkpoint=weights,
        world_size=2,
        # and not on how a global batch is cut
        micro_batch_size=MICRO_BATCH[layout],
        parallelism=LAYOUTS[layout],
    )
    run = trainer.start(job)
    live = _watch(run)
    assert run.wait() == 0, run.log()
    _assert_close(trainer.records(job), trainer.records(single))
    assert live == trainer.records(job)[0], "nothing was reported while the run went on"
    events, _ = read_events(job.events_path)
    kinds = [event.kind for event in events]
    assert kinds.count("started") == kinds.count("finished") == 1, "more than one process reports"
    assert [e.data["iteration"] for e in events if e.kind == "checkpoint"] == [4, 8]


def test_documents_that_do_not_see_each_other_are_trained_alike_on_any_layout(
    trainer: Any, single: TrainJob, weights: Path, tmp_path: Path
) -> None:
    """The second half on two pipeline stages: a run goes on with those, too."""

    def job(name: str, **changes: Any) -> TrainJob:
        parallelism = {"distributed_optimizer": True, **changes.pop("parallelism", {})}
        return trainer.job(
            tmp_path / name,
            pretrained_checkpoint=weights,
            document_attention="masked",
            parallelism=parallelism,
            **changes,
        )

    one = job("one")
    trainer.finish(one)
    stages = job("stages", world_size=2, micro_batch_size=1, parallelism={"pipeline": 2})
    _begin_as(one, stages, trainer)
    trainer.finish(stages)
    _assert_close(trainer.records(stages), trainer.records(one))
    seen, masked = trainer.records(single), trainer.records(one)
    # held-out windows are the same, training samples hold the same tokens, less of which is predicted, from less
    assert masked[0] == seen[0]
    assert masked[1]["consumed_samples"] == seen[1]["consumed_samples"]
    assert masked[1]["loss"] != pytest.approx(seen[1]["loss"], rel=1e-4)


def test_what_was_drawn_is_counted_and_nothing_is_written_beside_the_shards(trainer: Any, single: TrainJob) -> None:
    drawn = read_realised(single)
    assert {corpus: entry["samples"] for corpus, entry in drawn.items()} == {"a_train": 48, "b_train": 16}
    assert all(entry["epochs"] > 0 for entry in drawn.values())
    assert [file.suffix for file in sorted(trainer.shards.iterdir())] == [".bin", ".idx"] * 4


@pytest.mark.parametrize("sizes", [{}, {"tensor": 2}, {"pipeline": 2}], ids=["data 2", "tensor 2", "pipeline 2"])
def test_a_run_goes_on_with_other_parallel_sizes(
    sizes: dict[str, int], trainer: Any, single: TrainJob, weights: Path, tmp_path: Path
) -> None:
    """Loss, learning rate, gradient norm and consumed samples: all that the records hold."""
    job = trainer.job(
        tmp_path,
        pretrained_checkpoint=weights,
        world_size=2,
        parallelism={"distributed_optimizer": True, **sizes},
    )
    _begin_as(single, job, trainer)
    trainer.finish(job)
    _assert_close(trainer.records(job), trainer.records(single))


def _begin_as(done: TrainJob, job: TrainJob, trainer: Any) -> None:
    """Give a job the first four steps of one that is done."""
    job.run_dir.mkdir(parents=True, exist_ok=True)
    shutil.copytree(done.checkpoints_dir, job.checkpoints_dir)
    saved = Saved(job.checkpoints_dir)
    saved.remove(8)
    assert saved.sweep(print) == 4
    cut = [record for record in trainer.records(done) if record["iteration"] <= 4]
    job.metrics_path.write_text("".join(json.dumps(record) + "\n" for record in cut))


def _assert_close(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Equal but for the order of additions in fp32."""
    assert [record["iteration"] for record in found] == [record["iteration"] for record in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["consumed_samples"] == theirs["consumed_samples"]
        assert ours.get("learning_rate") == theirs.get("learning_rate")
        for name, tolerance in {"loss": 2e-6, "grad_norm": 2e-5, "validation_loss": 2e-6}.items():
            if name in theirs:
                assert ours[name] == pytest.approx(theirs[name], rel=tolerance)


def _watch(run: Any) -> dict[str, Any]:
    """The first metric event, read while the processes run."""
    metrics: list[dict[str, Any]] = []

    def seen() -> bool:
        metrics[:] = [event.data for event in read_events(run.job.events_path)[0] if event.kind == "metric"]
        return bool(metrics)

    run.wait_for(seen)
    return metrics[0]
