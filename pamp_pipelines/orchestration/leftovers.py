"""Runs of this machine whose process was killed: marked as failed, and their pool slots freed.

Dagster's run monitoring does not watch runs that were executed in process, so a killed ``pamp materialize`` would stay
STARTED for ever and keep everything that follows waiting for its slot.
"""

import os
import socket
from collections.abc import Mapping

import dagster as dg
import psutil

HOST_TAG = "pamp/host"
PROCESS_TAG = "pamp/process"
"""``pid@start time``, since process ids are used again."""


def process_tags() -> dict[str, str]:
    """Tags by which a run that is executed in this process is found again."""
    return {HOST_TAG: socket.gethostname(), PROCESS_TAG: _identity(psutil.Process(os.getpid()))}


def end_leftovers(instance: dg.DagsterInstance) -> list[str]:
    """Fail the runs of processes that are gone; returns their ids."""
    unfinished = [s for s in dg.DagsterRunStatus if s.name in {"NOT_STARTED", "STARTING", "STARTED", "CANCELING"}]
    runs = instance.get_runs(filters=dg.RunsFilter(statuses=unfinished, tags={HOST_TAG: socket.gethostname()}))
    dead = [run for run in runs if not _alive(run.tags)]
    for run in dead:
        instance.report_run_failed(run, "The process that executed this run was killed.")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return [run.run_id for run in dead]


def _alive(tags: Mapping[str, str]) -> bool:
    identity = tags.get(PROCESS_TAG, "")
    try:
        return _identity(psutil.Process(int(identity.partition("@")[0]))) == identity
    except (psutil.Error, ValueError):
        return False


def _identity(process: psutil.Process) -> str:
    return f"{process.pid}@{process.create_time():.2f}"
