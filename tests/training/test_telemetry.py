"""What a run reports, from the scalars that Megatron gives to TensorBoard."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from pamp_pipelines.conversion.torch_dist import write_index
from pamp_pipelines.lake.events import read_events
from pamp_pipelines.training import telemetry
from pamp_pipelines.training.checkpoints import TRACKER, checkpoint_path
from pamp_pipelines.training.energy import energy_meter
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.outcome import stats
from pamp_pipelines.training.telemetry import Reporter, TeeWriter


class Writer:
    """Stands for TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.flushed = False

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def flush(self) -> None:
        self.flushed = True


@pytest.fixture
def job(make_job: Callable[..., TrainJob]) -> TrainJob:
    return make_job(iterations=4, global_batch_size=2, checkpoint={"interval": 2}, validation={"interval": 2})


def records(job: TrainJob) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.metrics_path.read_text().splitlines()]


def test_scalars_of_an_iteration_become_one_record(job: TrainJob) -> None:
    reporter = Reporter(job, {"a": 30, "b": 10})
    writer = Writer()
    tee = TeeWriter(writer, reporter)
    for tag, value in {
        "learning-rate": 1e-3,
        "lm loss": 2.5,
        "lm loss vs samples": 99.0,
        "grad-norm": 0.5,
        "iteration-time": 0.25,
        "lm loss validation-a": 2.0,
        "lm loss validation-b": 4.0,
    }.items():
        tee.add_scalar(tag, value, 3)
    reporter.iteration_done(3)
    (record,) = records(job)
    assert record == {
        "iteration": 3,
        "consumed_samples": 6,
        "consumed_tokens": 96,
        "loss": 2.5,
        "learning_rate": 1e-3,
        "grad_norm": 0.5,
        "seconds_per_iteration": 0.25,
        "tokens_per_second": 128.0,
        # 6 x (1120 + 128 x 8 parameters, tied) + 6 x 2 layers x 8 wide x 16 tokens, for each token
        "model_tflops": pytest.approx(128.0 * 14832 / 1e12),
        # the splits weigh as many tokens as they have
        "validation_loss": (2.0 * 30 + 4.0 * 10) / 40,
        "validation": {"a": {"loss": 2.0, "tokens": 30}, "b": {"loss": 4.0, "tokens": 10}},
    }
    assert ("lm loss", 2.5, 3) in writer.scalars
    tee.flush()
    assert writer.flushed
    assert read_events(job.events_path)[0][-1].data == record


def test_an_iteration_that_was_not_logged_has_no_record(job: TrainJob) -> None:
    Reporter(job, {}).iteration_done(1)
    assert not job.metrics_path.exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_null(value: float, job: TrainJob) -> None:
    reporter = Reporter(job, {})
    reporter.scalar("lm loss", value)
    reporter.iteration_done(1)
    assert records(job)[0]["loss"] is None


def test_a_resumed_run_drops_what_it_will_do_again(job: TrainJob) -> None:
    whole = '{"iteration": 2, "loss": 1.0}\n'
    job.metrics_path.write_text(whole + '{"iteration": 3, "loss": 1.0}\n{"iterat')
    Reporter(job, {}).started(2)
    assert job.metrics_path.read_text() == whole
    (started,) = read_events(job.events_path)[0]
    assert (started.kind, started.data["iteration"], started.data["iterations"]) == ("started", 2, 4)


def test_events_are_fewer_than_records_but_never_lack_the_last(job: TrainJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_EVENT_SECONDS", 1000.0)
    reporter = Reporter(job, {})
    reporter._last_event = math.inf
    for iteration in range(1, 5):
        reporter.scalar("lm loss", 1.0)
        reporter.iteration_done(iteration)
    assert [record["iteration"] for record in records(job)] == [1, 2, 3, 4]
    assert [event.data["iteration"] for event in read_events(job.events_path)[0]] == [4]


def test_a_checkpoint_is_announced_once_it_is_complete_and_named(job: TrainJob) -> None:
    reporter = Reporter(job, {})
    path = checkpoint_path(job.checkpoints_dir, 2)
    path.mkdir(parents=True)
    tracker = job.checkpoints_dir / TRACKER
    reporter.announce_checkpoint()
    tracker.write_text("2")
    reporter.announce_checkpoint()
    assert read_events(job.events_path)[0] == []
    write_index(path, [], [])
    tracker.write_text("")  # Megatron writes it in place
    reporter.announce_checkpoint()
    assert read_events(job.events_path)[0] == []
    tracker.write_text("2")
    reporter.announce_checkpoint()
    reporter.announce_checkpoint()
    (event,) = read_events(job.events_path)[0]
    assert (event.kind, event.data) == ("checkpoint", {"iteration": 2, "path": str(path)})
    assert Reporter(job, {})._announced == 2


@pytest.mark.parametrize(("device", "mfu"), [("NVIDIA H200", 0.5), ("NVIDIA H999", None)])
def test_utilisation_is_against_a_known_peak_or_not_given(device: str, mfu: float | None, job: TrainJob) -> None:
    bf16 = job.model_copy(update={"precision": "bf16", "world_size": 2})
    reporter = Reporter(bf16, {}, device=device, peak_memory=lambda: 3 * 2**30)
    tokens_per_second = 2 * 989e12 / 2 / reporter._flops_per_token
    reporter.scalar("lm loss", 1.0)
    reporter.scalar("iteration-time", bf16.tokens_per_iteration / tokens_per_second)
    reporter.iteration_done(1)
    (record,) = records(job)
    assert record["model_tflops"] == pytest.approx(989 / 2)
    assert record.get("mfu") == (None if mfu is None else pytest.approx(mfu))
    assert record["peak_memory_gib"] == 3.0


def test_energy_is_what_was_used_since_the_record_before(job: TrainJob) -> None:
    meter = iter([100.0, 350.0, math.nan, 900.0])
    reporter = Reporter(job, {}, joules=lambda: next(meter))
    for iteration in (1, 2, 3):
        reporter.scalar("lm loss", 1.0)
        reporter.scalar("iteration-time", 0.5)
        reporter.iteration_done(iteration)
    # a reading that failed is left out, and so is the one after it, whose start nobody knows
    assert [record.get("gpu_joules") for record in records(job)] == [250.0, None, None]
    numbers = stats(
        job.model_copy(update={"world_size": 4}), read_metrics(job.metrics_path), seconds=1, resumed_from=None
    )
    assert numbers["energy_kwh"] == 4 * 250 / 3.6e6


class Nvml:
    """Stands for NVIDIA's library."""

    def __init__(self, *, found: bool = True, counts: bool = True) -> None:
        self.found, self.counts, self.asked = found, counts, b""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        self.asked = uuid
        return 0 if self.found else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, counter: Any) -> int:
        counter._obj.value = 123_456
        return 0 if self.counts else 3


def test_the_meter_counts_joules_of_its_own_gpu_or_is_none() -> None:
    nvml = Nvml()
    meter = energy_meter("1234", lambda name: nvml)
    assert meter is not None
    assert (meter(), nvml.asked) == (123.456, b"GPU-1234")
    for useless in (Nvml(found=False), Nvml(counts=False)):
        assert energy_meter("GPU-1234", lambda name, library=useless: library) is None

    def missing(name: str) -> Any:
        raise OSError(name)

    assert energy_meter("1234", missing) is None


class FullWriter(Writer):
    """TensorBoard's writer on a full disk."""

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_records_wait_while_the_disk_is_full(job: TrainJob) -> None:
    """Training goes on until it has to save; the loss curve has no hole when there is space again."""
    reporter = Reporter(job, {})
    writer = TeeWriter(FullWriter(), reporter)
    job.metrics_path.symlink_to("/dev/full")
    for iteration in (1, 2):
        writer.add_scalar("lm loss", 5.0 - iteration, iteration)
        reporter.iteration_done(iteration)
    with pytest.raises(OSError, match="No space left"):
        reporter.finished(2)
    job.metrics_path.unlink()
    writer.add_scalar("lm loss", 2.0, 3)
    reporter.iteration_done(3)
    reporter.finished(3)
    lines = [json.loads(line) for line in job.metrics_path.read_text().splitlines()]
    assert [(line["iteration"], line["loss"]) for line in lines] == [(1, 4.0), (2, 3.0), (3, 2.0)]
