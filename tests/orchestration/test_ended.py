from types import SimpleNamespace
from typing import cast

import dagster as dg
import pytest

from pamp_pipelines.lake.events import Event, event
from pamp_pipelines.orchestration.ended import LOOK_S, UNHEARD_S, stopping_when_ended


class Run:
    """A run that works, with a clock of its own."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        job = dg.JobDefinition(graph_def=dg.GraphDefinition("g"), name="job")
        self.instance, self.run = instance, instance.create_run_for_job(job)
        self.now = 0.0
        self.seen: list[Event] = []
        context = SimpleNamespace(instance=instance, run=self.run)
        self._handle = stopping_when_ended(
            cast(dg.AssetExecutionContext, context), self.seen.append, clock=lambda: self.now
        )

    def hears(self, after: float) -> None:
        self.now += after
        self._handle(event("metric", step=1))

    def becomes(self, kind: str) -> None:
        self.instance.handle_run_event(self.run.run_id, dg.DagsterEvent(kind, "job"))


@pytest.fixture
def run(instance: dg.DagsterInstance) -> Run:
    run = Run(instance)
    run.becomes("PIPELINE_START")
    return run


def test_a_run_that_goes_on_is_left_alone(run: Run) -> None:
    for _ in range(5):
        run.hears(LOOK_S)
    assert len(run.seen) == 5


@pytest.mark.parametrize("kind", ["PIPELINE_CANCELED", "PIPELINE_FAILURE"])
def test_a_run_that_was_ended_elsewhere_stops_at_the_next_look(run: Run, kind: str) -> None:
    run.becomes(kind)
    run.hears(LOOK_S / 2)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.hears(LOOK_S / 2)


def test_a_request_to_stop_is_left_to_the_signal_first(run: Run) -> None:
    run.becomes("PIPELINE_CANCELING")
    run.hears(LOOK_S)
    run.hears(UNHEARD_S - 1)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run.hears(LOOK_S)
