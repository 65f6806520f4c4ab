"""How long one launch may take, retries included."""

import contextlib
import time
from collections.abc import Iterator

import dagster as dg

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import WorkerFailed


@contextlib.contextmanager
def within(context: dg.AssetExecutionContext, hours: float | None, profile: ComputeProfile) -> Iterator[ComputeProfile]:
    """Yields the profile with the time that is left of ``hours`` since the run began.

    A worker that is ended because that time is up is not tried again: what it saved is there for the next launch.
    """
    if hours is None:
        yield profile
        return
    left = started(context) + hours * 3600 - time.time()
    if left <= 0:
        raise dg.Failure(_message(hours), allow_retries=False)
    end = time.monotonic() + left
    try:
        yield profile.model_copy(update={"timeout_s": min(left, profile.timeout_s or left)})
    except WorkerFailed as error:
        if time.monotonic() >= end:
            raise dg.Failure(f"{_message(hours)} {error}", allow_retries=False) from error
        raise


def started(context: dg.AssetExecutionContext) -> float:
    """Unix time at which the run began; now, where that is not recorded yet."""
    record = context.instance.get_run_record_by_id(context.run.run_id)
    return record.start_time if record and record.start_time else time.time()


def _message(hours: float) -> str:
    return f"the launch took its max_hours ({hours:g}); launch it again to go on from the newest checkpoint."
