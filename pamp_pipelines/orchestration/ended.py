"""A run that somebody else has ended stops working.

"Force termination" only writes a status, and "Terminate" needs the code server that started the run: where that was
killed, the run's process hears of neither and would train on under a run that is shown as canceled.
"""

import time
from collections.abc import Callable

import dagster as dg

from pamp_pipelines.lake.events import Event, OnEvent
from pamp_pipelines.orchestration.outage import is_outage

LOOK_S = 10.0
"""Seconds between two looks at the run's status."""

UNHEARD_S = 30.0
"""A signal follows a request to stop within moments; after so many seconds it will not come any more. Acting sooner
would be a second request beside the signal, and that cuts short the time to save."""


def stopping_when_ended(
    context: dg.AssetExecutionContext, on_event: OnEvent, clock: Callable[[], float] = time.monotonic
) -> OnEvent:
    """An ``on_event`` that also looks at the run's status now and then, and stops as ``stop_when_ended`` does."""
    look = stop_when_ended(context, clock)

    def handle(event: Event) -> None:
        on_event(event)
        look()

    return handle


def stop_when_ended(
    context: dg.AssetExecutionContext, clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """A function to call often, which looks at the run's status every ``LOOK_S`` seconds.

    It raises DagsterExecutionInterruptedError, as a signal does, when the run has ended or its end was asked for.
    """
    looked, asked = clock(), float("inf")

    def look() -> None:
        nonlocal looked, asked
        if clock() - looked < LOOK_S:
            return
        looked = clock()
        status = run_status(context.instance, context.run.run_id)
        if status is dg.DagsterRunStatus.CANCELING:
            asked = min(asked, looked)
        if status in (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE) or looked - asked >= UNHEARD_S:
            raise dg.DagsterExecutionInterruptedError(f"the run is {status.value if status else 'gone'}")

    return look


def run_status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus | None:
    """Of a run; None where it is gone, or the database does not answer."""
    try:
        run = instance.get_run_by_id(run_id)
    except Exception as error:
        if not is_outage(error):
            raise
        return None
    return run.status if run else None
