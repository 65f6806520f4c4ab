"""The slot of a pool that a step needs, waited for where a cancel is heard.

Dagster's queue does not start a run whose pool is full. A run that another one was quicker than has left the queue, and
one of `pamp materialize` has none: Dagster's in-process executor then turns round at full speed in a loop that says
nothing and hears neither a signal nor that its run was ended (``ActiveExecution.sleep_til_ready``).
"""

import time

import dagster as dg
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._utils.interrupts import pop_captured_interrupt

from pamp_pipelines.lake.events import event
from pamp_pipelines.orchestration.ended import run_status
from pamp_pipelines.orchestration.events import listener
from pamp_pipelines.orchestration.leftovers import end_leftovers

POLL_S = 1.0
"""Seconds between two looks for a slot."""

OVER = frozenset({dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE})
"""No work has begun that a second request beside the signal could cut short."""


class WaitingSlots(InstanceConcurrencyContext):
    """Dagster's claims of a run's steps, each of which comes back with the slot."""

    def __init__(self, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
        super().__init__(instance, run)
        self._of_instance, self._run = instance, run

    def claim(self, concurrency_key: str, step_key: str, step_priority: int = 0) -> bool:
        """True, after the wait. What holds the slot is said in the run's log and to the command line.

        Raises:
            DagsterExecutionInterruptedError: the run was canceled meanwhile.
        """
        told: str | None = None
        while not super().claim(concurrency_key, step_key, step_priority):
            if (waits := self._waits_for(concurrency_key)) != told:
                told = waits
                self._of_instance.report_engine_event(waits, self._run)
                listener.get()(event("warning", message=waits))
            time.sleep(POLL_S)
            self._stop_when_over()
            end_leftovers(self._of_instance)
        return True

    def _waits_for(self, pool: str) -> str:
        found = self._of_instance.event_log_storage.get_concurrency_info(pool)
        # a slot is assigned to the next of the waiting before that one takes it
        holders = (found.active_run_ids | found.assigned_run_ids) - {self._run.run_id}
        named = ", ".join(sorted(run[:8] for run in holders)) or f"no run: its limit is {found.slot_count}"
        return f"Waiting for a slot of the pool {pool}, held by {named}."

    def _stop_when_over(self) -> None:
        status = run_status(self._of_instance, self._run.run_id)
        if pop_captured_interrupt() or status in OVER:  # the executor keeps signals back outside of steps
            raise dg.DagsterExecutionInterruptedError("the run was canceled while it waited for a slot")
