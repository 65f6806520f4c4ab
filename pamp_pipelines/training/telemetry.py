"""What a run reports: metric records and events, taken from what Megatron hands to TensorBoard, never from its text.

Exactly one process reports: the last rank, which is in the last pipeline stage and so has the loss, and to which
Megatron gives the TensorBoard writer.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.disk import is_no_space
from pamp_pipelines.training.accelerators import GIB, recognise
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import cut_metrics
from pamp_pipelines.training.saved import Saved
from pamp_pipelines.training.shape import flops_per_token, shape_of

_LOSS = "lm loss"
_VALIDATION = f"{_LOSS} validation-"
_FIELDS = {
    _LOSS: "loss",
    "learning-rate": "learning_rate",
    "grad-norm": "grad_norm",
    "loss-scale": "loss_scale",
    "iteration-time": "seconds_per_iteration",
}
_EVENT_SECONDS = 1.0
"""Least time between two metric events; ``metrics.jsonl`` gets every record."""


class Reporter:
    """Collects the scalars of an iteration, and writes them as one record once the iteration is over."""

    def __init__(
        self,
        job: TrainJob,
        heldout_tokens: dict[str, int],
        *,
        device: str = "",
        peak_memory: Callable[[], int] | None = None,
        joules: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            job: what is run.
            heldout_tokens: predicted tokens of each held-out split, by corpus.
            device: name of the GPU; its known peak makes the speed a utilisation.
            peak_memory: bytes of the GPU's memory that this process has held at most.
            joules: energy that the GPU has used, from any point on.
        """
        self.job = job
        self._flops_per_token = flops_per_token(shape_of(job.hf_config), job.sequence_length)
        known = recognise(device)
        self._peak_tflops = known.peak(job.precision) if known else None
        self._peak_memory = peak_memory
        self._joules = joules
        self._used = joules() if joules else 0.0
        self.heldout_tokens = heldout_tokens
        self.events = EventLog(job.events_path)
        self._scalars: dict[str, float] = {}
        self._unwritten: list[str] = []
        self._saved = Saved(job.checkpoints_dir)
        self._announced = self._saved.tracker()
        self._last_event = 0.0

    def started(self, iteration: int) -> None:
        """The run goes on after ``iteration``: what an earlier process recorded beyond it will be recorded again."""
        cut_metrics(self.job.metrics_path, iteration or None)
        self.events.write(
            "started",
            run=self.job.name,
            iteration=iteration,
            iterations=self.job.iterations,
            mode=self.job.mode(iteration),
            world_size=self.job.world_size,
        )

    def construction(self, facts: dict[str, Any]) -> None:
        """What Megatron built: see ``constructed``."""
        self.events.write("construction", run=self.job.name, **facts)

    def scalar(self, tag: str, value: float) -> None:
        """One value of the current iteration, under its TensorBoard tag."""
        self._scalars[tag] = value

    def validation_losses(self) -> dict[str, float]:
        """By corpus, those of the current iteration."""
        return {c: self._scalars[_VALIDATION + c] for c in self.heldout_tokens if _VALIDATION + c in self._scalars}

    def iteration_done(self, iteration: int) -> None:
        """Write the record of an iteration, unless nothing was logged for it."""
        scalars, self._scalars = self._scalars, {}
        if _LOSS not in scalars and not any(tag.startswith(_VALIDATION) for tag in scalars):
            return
        record = self._record(iteration, scalars)
        self._unwritten.append(json.dumps(record))
        self._write_metrics()
        now = time.monotonic()
        important = "validation_loss" in record or iteration >= self.job.iterations
        if important or now - self._last_event >= _EVENT_SECONDS:
            self._last_event = now
            self.events.write("metric", **record)

    def _record(self, iteration: int, scalars: dict[str, float]) -> dict[str, Any]:
        record: dict[str, Any] = {
            "iteration": iteration,
            "consumed_samples": iteration * self.job.global_batch_size,
            "consumed_tokens": iteration * self.job.tokens_per_iteration,
        }
        for tag, field in _FIELDS.items():
            if tag in scalars:
                record[field] = _finite(scalars[tag])
        seconds = record.get("seconds_per_iteration")
        if seconds:
            record |= self._speed(self.job.tokens_per_iteration / seconds)
        corpora = {c: scalars[_VALIDATION + c] for c in self.heldout_tokens if _VALIDATION + c in scalars}
        if corpora:
            # Megatron reports the mean over each split; the loss over all splits weighs every token the same
            tokens = sum(self.heldout_tokens[c] for c in corpora)
            total = sum(loss * self.heldout_tokens[c] for c, loss in corpora.items())
            record["validation_loss"] = _finite(total / tokens)
            record["validation"] = {
                c: {"loss": _finite(loss), "tokens": self.heldout_tokens[c]} for c, loss in corpora.items()
            }
        return record

    def _speed(self, tokens_per_second: float) -> dict[str, float]:
        """Tokens per second of all processes; of one: model TFLOP/s, the share of what its GPU could do, joules."""
        tflops = tokens_per_second * self._flops_per_token / self.job.world_size / 1e12
        speed = {"tokens_per_second": tokens_per_second, "model_tflops": tflops}
        if self._peak_tflops:
            speed["mfu"] = tflops / self._peak_tflops
        if self._joules:
            # what validation and saves used in between counts too
            now, before = self._joules(), self._used
            self._used = now
            if math.isfinite(now - before):
                speed["gpu_joules"] = now - before
        if self._peak_memory:
            speed["peak_memory_gib"] = self._peak_memory() / GIB
        return speed

    def _write_metrics(self, *, last: bool = False) -> None:
        """Append the records that are not in ``metrics.jsonl`` yet.

        On a full disk they wait for the next one: training can go on until it has to save.

        Raises:
            OSError: the disk is full, and these were the ``last`` ones.
        """
        lines = "".join(f"{line}\n" for line in self._unwritten).encode()
        try:
            with self.job.metrics_path.open("ab", buffering=0) as stream:
                end = stream.tell()
                if stream.write(lines) < len(lines):
                    stream.truncate(end)  # half a line would spoil the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.job.metrics_path))
        except OSError as error:
            if last or not is_no_space(error):
                raise
            return
        self._unwritten.clear()

    def announce_checkpoint(self) -> None:
        """Report the newest checkpoint, once the tracker names it and it is complete."""
        iteration = self._saved.tracker()
        if iteration is not None and iteration != self._announced and self._saved.complete(iteration):
            self._announced = iteration
            self.events.write("checkpoint", iteration=iteration, path=str(self._saved.dir(iteration)))

    def finished(self, iteration: int) -> None:
        """The run is complete.

        Raises:
            OSError: the disk is full, and the loss curve is not whole.
        """
        self._write_metrics(last=True)
        self.events.write("finished", iteration=iteration)

    def stopped(self, reason: str, iteration: int | None) -> None:
        """The process ends before the run is complete; a retry goes on after ``iteration``."""
        self.events.write("failed", reason=reason, iteration=iteration)


class TeeWriter:
    """A TensorBoard ``SummaryWriter`` that hands every scalar to a reporter as well."""

    def __init__(self, writer: Any, reporter: Reporter) -> None:
        self._writer = writer
        self._reporter = reporter

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, *args: Any, **kwargs: Any
    ) -> None:
        try:
            self._writer.add_scalar(tag, scalar_value, global_step, *args, **kwargs)
        except OSError as error:
            # a curve for people; metrics.jsonl is what counts
            if not is_no_space(error):
                raise
        self._reporter.scalar(tag, float(scalar_value))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
