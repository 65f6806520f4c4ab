"""Runs of this machine whose process was killed: marked as failed, and their pool slots freed.

Dagster's run monitoring does not watch runs that were executed in process, nor those of a daemon that was killed with
its code server: they would stay STARTED for ever and keep everything that follows waiting for their slot.
"""

import os
import socket

import dagster as dg
import psutil

PROCESS_TAG = ".dagster/pamp_process"
"""``host pid start-time run-id``: process ids are used again, and a run that is executed again is given the tags of the
first one. The UI hides tags with this prefix."""


def process_tags(run_id: str) -> dict[str, str]:
    """Tags by which a run that is executed in this process is found again."""
    return {PROCESS_TAG: f"{_identity(psutil.Process(os.getpid()))} {run_id}"}


def end_leftovers(instance: dg.DagsterInstance) -> list[str]:
    """Fail the runs of this machine's processes that are gone; returns their ids."""
    unfinished = [s for s in dg.DagsterRunStatus if s.name in {"NOT_STARTED", "STARTING", "STARTED", "CANCELING"}]
    runs = instance.get_runs(filters=dg.RunsFilter(statuses=unfinished))
    dead = [run for run in runs if _is_dead(run.tags.get(PROCESS_TAG, ""), run.run_id)]
    for run in dead:
        instance.report_run_failed(run, "The process that executed this run was killed.")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    _free_lost_slots(instance)
    return [run.run_id for run in dead]


def _free_lost_slots(instance: dg.DagsterInstance) -> None:
    """Free slots, and places in the line for one, of runs that do not exist, and of ended runs whose process is gone.

    Every run is created before it claims, so that one which is not there was deleted, or never came to be.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    infos = [storage.get_concurrency_info(pool) for pool in storage.get_concurrency_keys()]
    holders = {run for info in infos for run in (*info.active_run_ids, *info.assigned_run_ids, *info.pending_run_ids)}
    if not holders:
        return
    found = {run.run_id: run for run in instance.get_runs(filters=dg.RunsFilter(run_ids=sorted(holders)))}
    for run_id in holders:
        run = found.get(run_id)
        if run is None or (run.is_finished and _is_dead(run.tags.get(PROCESS_TAG, ""), run_id)):
            storage.free_concurrency_slots_for_run(run_id)


def _is_dead(tag: str, run_id: str) -> bool:
    """False also for what cannot be judged from here: a run without a tag of its own, or of another machine."""
    identity, _, of_run = tag.rpartition(" ")
    host, _, process = identity.partition(" ")
    if host != socket.gethostname() or of_run != run_id:
        return False
    try:
        found = psutil.Process(int(process.partition(" ")[0]))
        return found.status() == psutil.STATUS_ZOMBIE or _identity(found) != identity
    except psutil.NoSuchProcess:
        return True


def _identity(process: psutil.Process) -> str:
    return f"{socket.gethostname()} {process.pid} {process.create_time():.2f}"
