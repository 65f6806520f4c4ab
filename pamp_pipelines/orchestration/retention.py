"""Optional: forget runs that ended long ago and made nothing. Off unless PAMP_KEEP_RUNS_DAYS is set.

Dagster keeps every run for ever. A run that reported an artifact is lineage and stays; one that failed or was canceled
before that is only history. Their events go with them, and the console output of all runs of that age. The logs of a
training itself are in its version directory and are not touched.
"""

import datetime
import os

import dagster as dg

from pamp_pipelines.errors import InputError

VARIABLE = "PAMP_KEEP_RUNS_DAYS"
MOST_DAYS = 36_500
AT_ONCE = 200
"""Runs that one tick looks at: a tick has to end within a minute."""
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def forget_old_runs(minimum_interval_s: int = 600) -> list[dg.SensorDefinition]:
    """The sensor, or nothing where no number of days is set."""
    if not os.environ.get(VARIABLE):
        return []
    days = keep_days()

    @dg.sensor(
        name="forget_old_runs",
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Deletes runs that ended more than {days:g} days ago ({VARIABLE}) and reported no artifact, and "
        "the console output of all runs of that age.",
    )
    def forget(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
        forgotten, cursor = forget_runs(context.instance, before, context.cursor)
        context.update_cursor(cursor)
        return dg.SkipReason(f"Deleted {forgotten} runs." if forgotten else "No run to delete.")

    return [forget]


def keep_days() -> float:
    """Raises InputError for what is not a positive number, or more than dates can tell."""
    text = os.environ[VARIABLE]
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= MOST_DAYS:
        raise InputError(
            f"{VARIABLE}={text}: not a number of days above 0 and up to {MOST_DAYS}; unset it to keep all."
        )
    return days


def forget_runs(instance: dg.DagsterInstance, before: datetime.datetime, cursor: str | None) -> tuple[int, str]:
    """Delete up to ``AT_ONCE`` runs, in the order in which they ended.

    So does the cursor: by the times at which runs were created, a long one would be passed while it runs.

    Args:
        instance: whose runs.
        before: only those that ended earlier.
        cursor: what the call before returned; the runs that it kept are not looked at again.

    Returns:
        how many were deleted, and where to go on.
    """
    after = datetime.datetime.fromisoformat(cursor) if cursor else None
    wanted = dg.RunsFilter(statuses=_ENDED, updated_before=before, updated_after=after)
    deleted = 0
    for record in instance.get_run_records(wanted, limit=AT_ONCE, order_by="update_timestamp", ascending=True):
        run = record.dagster_run
        instance.compute_log_manager.delete_logs(prefix=[run.run_id])
        made = dg.DagsterEventType.ASSET_MATERIALIZATION
        if not instance.get_records_for_run(run.run_id, of_type=made, limit=1).records:
            instance.delete_run(run.run_id)
            deleted += 1
        after = record.update_timestamp
    return deleted, after.isoformat() if after else ""
