"""Which failures are worth another attempt, how many, and how soon: one table.

A step that failed by one of these is tried again within its run, and a training goes on from its newest complete
checkpoint. Everything else (a wrong declaration, a missing input, numbers that are not finite, a full disk) ends the
same next time and fails at once. A run whose own process died is another matter: `run_retries` in a team's settings.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from pamp_pipelines.errors import InfrastructureFailed, PampError, StorageError, WorkerFailed, WorkerPreempted
from pamp_pipelines.orchestration.ended import stop_when_ended

MAX_RUNTIME_MESSAGE = "Exceeded maximum runtime"
"""How Dagster's run monitoring begins its verdict (dagster/_daemon/monitoring/run_monitoring.py)."""

RETRY_NUMBER_TAG = "dagster/retry_number"
"""On runs that Dagster's daemon started in place of one that was lost."""


@dataclass(frozen=True)
class Retry:
    """How one kind of failure is tried again.

    Attributes:
        failure: the kind; its subclasses too, unless they have a line of their own above.
        most: retries of this kind in a run; other kinds are counted apart.
        delay_s: seconds before the first one.
        growth: factor from one delay to the next, up to ``LONGEST_DELAY_S``.
        resuming_only: only for stages that go on where they stopped.
    """

    failure: type[PampError]
    most: int
    delay_s: float
    growth: float = 2.0
    resuming_only: bool = False

    def delay(self, retries: int) -> float:
        """Seconds to wait after so many earlier retries of the kind."""
        return min(self.delay_s * self.growth**retries, LONGEST_DELAY_S)


LONGEST_DELAY_S = 1800.0

HEARING_S = 1.0
"""Longest sleep of a wait: a run that was ended elsewhere is looked for in between."""

RETRIES: Sequence[Retry] = (
    # the cluster is healthy and wants its machines for others: as often as it likes
    Retry(WorkerPreempted, most=100, delay_s=60, growth=1.0),
    # a machine or a service is broken, and somebody or something repairs it
    Retry(InfrastructureFailed, most=5, delay_s=60),
    Retry(StorageError, most=5, delay_s=60),
    # a worker crashed or was killed and did not say why: memory, a driver, a neighbour
    Retry(WorkerFailed, most=2, delay_s=60, resuming_only=True),
)
"""The first line that fits counts."""


def retry_of(error: PampError, *, resumes: bool) -> Retry | None:
    """The line for an error; None when another attempt cannot help."""
    found = next((line for line in RETRIES if isinstance(error, line.failure)), None)
    return None if found is None or (found.resuming_only and not resumes) else found


def delay_of(context: dg.AssetExecutionContext, error: PampError, *, resumes: bool) -> float | None:
    """Seconds to wait before another attempt; None when there shall be none."""
    line = retry_of(error, resumes=resumes)
    if line is None or (used := _used(context, line)) >= line.most:
        return None
    return line.delay(used)


def wait(context: dg.AssetExecutionContext, seconds: float) -> None:
    """Wait inside the step, which keeps its slot of the pool.

    Dagster's own wait between two attempts is one long sleep that no signal ends (``ActiveExecution.sleep_til_ready``),
    with the slot given away.

    Raises:
        DagsterExecutionInterruptedError: the run was canceled meanwhile.
    """
    look = stop_when_ended(context)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, HEARING_S))  # a signal raises here
        look()


def _used(context: dg.AssetExecutionContext, line: Retry) -> int:
    """Retries of this kind that the step has had in its run, by the class that each event names."""
    names = {kind.__name__ for kind in _kinds(line)}
    step = context.op_execution_context.get_step_execution_context().step.key
    count = 0
    for entry in context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.STEP_UP_FOR_RETRY):
        event = entry.dagster_event
        error = event.step_retry_data.error if event and event.step_key == step else None
        count += error is not None and error.cause is not None and error.cause.cls_name in names
    return count


def _kinds(line: Retry) -> list[type[PampError]]:
    """The classes that come to this line of the table."""
    found: list[type[PampError]] = []
    queue = [line.failure]
    while queue:
        kind = queue.pop()
        if next(other for other in RETRIES if issubclass(kind, other.failure)) is line:
            found.append(kind)
        queue += kind.__subclasses__()
    return found


def refuse_after_max_runtime(context: dg.AssetExecutionContext) -> None:
    """Fail a run that Dagster started in place of one which had taken its maximum runtime.

    Dagster counts that among the runs that were lost and are tried again.

    Raises:
        Failure: without retries.
    """
    parent = context.run.parent_run_id
    if parent is None or RETRY_NUMBER_TAG not in context.run.tags:
        return
    for entry in context.instance.all_logs(parent, of_type=dg.DagsterEventType.RUN_FAILURE):
        said = (entry.dagster_event.message or "") if entry.dagster_event else ""
        if said.startswith(MAX_RUNTIME_MESSAGE):
            text = f"run {parent[:8]} was ended: {said} Launch it again by hand to go on from the newest checkpoint."
            raise dg.Failure(text, allow_retries=False)


def continues_a_version(context: dg.AssetExecutionContext) -> bool:
    """Whether this attempt goes on with a version that was begun for it: by an earlier attempt, or by the run that it
    stands for, which did not end well."""
    if context.retry_number > 0:
        return True
    parent = context.instance.get_run_by_id(context.run.parent_run_id) if context.run.parent_run_id else None
    return parent is not None and parent.status is not dg.DagsterRunStatus.SUCCESS and "version" in parent.tags
