"""Stage errors as Dagster failures, with what is worth a retry and what is not, and back again for callers."""

import contextlib
from collections.abc import Iterator
from typing import Any

import dagster as dg

from pamp_pipelines.errors import MissingInput, PampError, VerificationFailed, WorkerCanceled
from pamp_pipelines.lake.events import event
from pamp_pipelines.orchestration.events import listener
from pamp_pipelines.orchestration.retries import delay_of, wait


@contextlib.contextmanager
def as_failures(context: dg.AssetExecutionContext, *, resumes: bool = False) -> Iterator[None]:
    """Turn a stage's errors into requests for another attempt, where ``retries.RETRIES`` has them, or into failures.

    A canceled run needs this as much as a wrong input: with the in-process executor Dagster takes the interrupt for one
    more step error and, under a retry policy, trains again to the end (dagster-io/dagster#15026).

    Args:
        context: of the running step.
        resumes: another attempt goes on where this one stopped.
    """
    try:
        with _tried_again(context, resumes):
            yield
    except (dg.DagsterExecutionInterruptedError, WorkerCanceled) as error:
        raise dg.Failure("canceled", allow_retries=False) from error
    except PampError as error:
        raise dg.Failure(str(error), metadata=_metadata(error), allow_retries=False) from error


@contextlib.contextmanager
def _tried_again(context: dg.AssetExecutionContext, resumes: bool) -> Iterator[None]:
    """Ask for another attempt, after its delay, where an error is worth one; other errors pass."""
    try:
        yield
    except PampError as error:
        delay = delay_of(context, error, resumes=resumes)
        if delay is None:
            raise
        if delay > 0:
            message = f"{error}\nThe next attempt is in {delay:g} s."
            context.log.warning(message)
            listener.get()(event("warning", message=message))
            wait(context, delay)
        raise dg.RetryRequested(max_retries=context.retry_number + 1) from error


def _metadata(error: PampError) -> dict[str, Any]:
    if not isinstance(error, MissingInput):
        return {}
    return {"missing_asset": error.asset, **({"missing_partition": error.partition} if error.partition else {})}


def stage_error(error: dg.Failure | dg.DagsterError, instance: dg.DagsterInstance, run_id: str) -> BaseException:
    """What the stage said, when a run that was executed in this process ended with ``error``."""
    cause = error.__cause__
    if isinstance(cause, dg.DagsterExecutionInterruptedError):
        return KeyboardInterrupt()
    if isinstance(cause, PampError):
        return cause
    if checks := _failed_checks(instance, run_id):
        return VerificationFailed("\n".join(checks))
    return error


def _failed_checks(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """The checks of a run that failed with severity ERROR, and what each says."""
    logs = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    found = [entry.dagster_event.asset_check_evaluation_data for entry in logs if entry.dagster_event]
    return [
        f"{check.asset_key.to_user_string()}: check {check.check_name} failed: {check.description or ''}".rstrip(": ")
        for check in found
        if not check.passed and check.severity is dg.AssetCheckSeverity.ERROR
    ]
