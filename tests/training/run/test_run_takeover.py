"""From which checkpoint a run of a lake at a URL goes on, when another machine trained it too."""

import json
from pathlib import Path

import pytest
import torch

from pamp_pipelines.lake import staging
from pamp_pipelines.lake.catalogue import refresh
from pamp_pipelines.lake.mirror import Mirror
from pamp_pipelines.lake.publication import publish_record
from pamp_pipelines.training.checkpoints import TRACKER
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.kept import record_path, record_saved, recorded_steps
from pamp_pipelines.training.restart import prepare
from tests.s3_server import Machines


@pytest.fixture
def on(bench):
    """The run's job on a machine."""

    def job(mirror: Mirror) -> TrainJob:
        return bench.job(run_dir=mirror.root / "runs/model/config/v0001")

    return job


def keep(job: TrainJob, step: int, checkpoint, *, publish: bool = True) -> None:
    """What training up to a step leaves, with two lines of metrics after it."""
    checkpoint(directory := job.checkpoints_dir / f"iter_{step:07d}", step)
    torch.save({"iteration": step}, directory / "common.pt")
    (job.checkpoints_dir / TRACKER).write_text(str(step))
    lines = [json.dumps({"iteration": i, "loss": 1.0, "by": job.run_dir.parts[-5]}) for i in range(1, step + 3)]
    job.metrics_path.write_text("".join(line + "\n" for line in lines))
    (job.run_dir / "job.json").write_text(job.model_dump_json())
    record_saved(job, step)
    if publish:
        publish_record(record_path(job.run_dir, step))


def metrics(job: TrainJob) -> list[tuple[int, str]]:
    lines = map(json.loads, job.metrics_path.read_text().splitlines())
    return [(line["iteration"], line["by"]) for line in lines]


@pytest.mark.parametrize("files", range(5))
def test_a_fetch_that_was_interrupted_goes_on(
    machines: Machines, on, checkpoint, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    keep(on(machines.mirror("first")), 4, checkpoint)
    refresh(second := machines.mirror("second"))
    job, warnings = on(second), []
    place, placed = staging._place, []

    def interrupted(mirror: Mirror, unit: object, entry: object, part: Path) -> None:
        if len(placed) == files:
            raise KeyboardInterrupt
        place(mirror, unit, entry, part)
        placed.append(entry)

    with monkeypatch.context() as patch:
        patch.setattr(staging, "_place", interrupted)
        try:
            prepare(job, warnings.append)
        except KeyboardInterrupt:
            assert len(list(job.checkpoints_dir.glob("*/*"))) == files
    assert prepare(job, warnings.append) == 4
    assert recorded_steps(job.run_dir) == [4]
    assert len(list(job.checkpoints_dir.glob("*/*"))) == 4
    assert not any("lost" in warning or "removed" in warning for warning in warnings)
    assert metrics(job) == [(i, "first") for i in range(1, 5)]


def test_a_run_that_comes_back_goes_on_from_what_the_other_machine_published(
    machines: Machines, on, checkpoint
) -> None:
    first, second = machines.mirror("first"), machines.mirror("second")
    keep(on(first), 4, checkpoint)
    refresh(second)
    assert prepare(on(second), lambda _: None) == 4
    keep(on(second), 8, checkpoint)
    refresh(first)
    warnings: list[str] = []
    assert prepare(on(first), warnings.append) == 8
    assert recorded_steps(on(first).run_dir) == [4, 8]
    assert metrics(on(first)) == [(i, "second") for i in range(1, 9)], "of the run that made the checkpoint"
    assert not any("lost" in warning for warning in warnings)


def test_what_is_newer_here_is_gone_on_from(machines: Machines, on, checkpoint) -> None:
    first = machines.mirror("first")
    keep(job := on(first), 4, checkpoint)
    keep(job, 8, checkpoint, publish=False)
    warnings: list[str] = []
    assert prepare(job, warnings.append) == 8
    assert warnings == []


def test_damage_here_is_replaced_by_what_is_published(machines: Machines, on, checkpoint) -> None:
    keep(job := on(machines.mirror("first")), 4, checkpoint)
    keep(job, 8, checkpoint)
    file = job.checkpoints_dir / "iter_0000008/__0_0.distcp"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(bytes([8]) * 4, bytes([9]) * 4, 1))
    warnings: list[str] = []
    assert prepare(job, warnings.append) == 8
    assert file.read_bytes() == whole
    assert recorded_steps(job.run_dir) == [4, 8]
    assert "not as it was saved" in warnings[0]
