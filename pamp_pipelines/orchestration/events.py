"""Events of a running stage as Dagster events, few enough for an event log that lasts for years."""

import contextvars
import time
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from pamp_pipelines.lake.events import Event, OnEvent, ignore
from pamp_pipelines.orchestration.outage import Deferred
from pamp_pipelines.orchestration.values import to_metadata

OBSERVATION_INTERVAL_S = 10.0
"""Each observation is a write to the event log and its index; full curves are in metrics.jsonl and TensorBoard."""

JOB_TAG = "pamp/job"
"""Tag of a run: the cluster's job that it waits for, as the cluster's own commands name it."""

listener: contextvars.ContextVar[OnEvent] = contextvars.ContextVar("listener", default=ignore)
"""Who else wants the events of a run in this process: the command line's progress display."""


class Reporter:
    """An ``on_event`` for one partition of one asset.

    Metrics become observations (numbers that the UI plots) and one log line, at most one every ``interval_s`` seconds;
    ``close`` reports the last one, so that the end of a curve is never missing. Warnings, start and end are logged at
    once. ``on_checkpoint`` gets the data of ``checkpoint`` events.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        asset: dg.AssetKey,
        *,
        on_checkpoint: Callable[[Mapping[str, Any]], None] | None = None,
        interval_s: float = OBSERVATION_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._asset = asset
        self._on_checkpoint = on_checkpoint
        self._interval_s = interval_s
        self._clock = clock
        self._reported = float("-inf")
        self._waiting: Mapping[str, Any] | None = None
        self._progressed = float("-inf")
        self._deferred = Deferred()

    def __call__(self, event: Event) -> None:
        listener.get()(event)
        match event.kind:
            case "metric":
                self._waiting = event.data
                if self._clock() - self._reported >= self._interval_s:
                    self.close()
            case "progress":
                if self._clock() - self._progressed >= self._interval_s:
                    self._progressed = self._clock()
                    self._context.log.info(f"{event.kind}: {_line(event.data)}")
            case "checkpoint":
                self._context.log.info(f"checkpoint: {_line(event.data)}")
                if announce := self._on_checkpoint:
                    self._deferred(lambda: announce(event.data))
            case "submitted":
                self._context.instance.add_run_tags(self._context.run.run_id, {JOB_TAG: _job(event.data)})
                self._context.log.info(f"submitted: {_line(event.data)}")
            case "warning":
                self._context.log.warning(_line(event.data))
            case "failed":
                self._context.log.error(f"failed: {_line(event.data)}")
            case _:
                self._context.log.info(f"{event.kind}: {_line(event.data)}")

    def close(self) -> None:
        """Report the newest metrics that were held back."""
        if self._waiting is None:
            return
        self._reported = self._clock()
        self._context.log.info(_line(self._waiting))
        observed = dg.AssetObservation(
            asset_key=self._asset,
            partition=str(self._context.partition_key) if self._context.has_partition_key else None,
            metadata=to_metadata(self._waiting),
        )
        self._deferred(lambda: self._context.log_event(observed))
        self._waiting = None

    def finish(self) -> None:
        """Report the last metrics, and what has waited for Dagster's database."""
        self.close()
        self._deferred.finish()


def _job(data: Mapping[str, Any]) -> str:
    return f"{data['launcher']} {data['job']}"


def _line(data: Mapping[str, Any]) -> str:
    """``step 3, loss 4.2103``: names and values as people read them."""
    return ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in data.items() if v is not None)
