"""Pieces made on a cluster: the tasks of a plan dealt out to the tasks of an array job.

The job needs nothing but the folder of the pieces on a file system of all machines. Each of its tasks makes every n-th
piece that is not complete yet; which one made a piece does not show in it.
"""

import hashlib
import shutil
from pathlib import Path

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, WorkerFailed
from pamp_pipelines.lake.events import Event, OnEvent
from pamp_pipelines.launchers import find_worker, run_worker
from pamp_pipelines.tokenization.array_worker import EXIT_INPUT
from pamp_pipelines.tokenization.pieces import Plan, Staging
from pamp_pipelines.tokenization.pool import Counters

WORKER = "pamp_pipelines.tokenization.array_worker"


def run_folder(staging: Staging) -> Path:
    """Handle, logs and events of the array, beside the pieces: a folder of pieces is cleared for another plan."""
    return staging.folder.with_name(f"{staging.folder.name}.array")


def end_other_array(plan: Plan, staging: Staging, cluster: ComputeProfile | None) -> None:
    """End an array that a killed build left, unless `make_pieces_on` will watch it: it makes these pieces, and so will
    a cluster. Otherwise it would write beside this build.
    """
    if (found := find_worker(run_folder(staging))) is None:
        return
    launcher, handle = found
    same = handle.details.get("job_sha256") == hashlib.sha256(plan.model_dump_json().encode()).hexdigest()
    if not (same and cluster is not None):
        launcher.cancel(handle)


def make_pieces_on(
    profile: ComputeProfile, plan: Plan, staging: Staging, tasks: int, counters: Counters, on_event: OnEvent
) -> None:
    """Make all missing pieces in an array of at most ``profile.world_size`` tasks.

    An array that a killed build left is watched, not started a second time.

    Args:
        tasks: pieces that are missing.

    Raises:
        InputError: a source is bad, or the cluster refuses the job.
        WorkerFailed: a task failed; finished pieces are kept.
    """
    if not tasks:
        return

    def hear(event: Event) -> None:
        if event.kind == "progress":
            counters.add(**event.data)
        elif event.kind != "failed":
            on_event(event)

    folder = run_folder(staging)
    try:
        count = min(profile.world_size, len(plan.tasks))
        run_worker(WORKER, staging.plan_file, folder, profile=profile, on_event=hear, tasks=count)
    except WorkerFailed as error:
        if error.exit_code == EXIT_INPUT:
            raise InputError(str(error)) from error  # a retry cannot help
        raise
    if missing := [number for number in range(len(plan.tasks)) if staging.finished(number) is None]:
        raise WorkerFailed(
            f"the array ended well, but piece {missing[0]} of {staging.folder} is not there; run again", 0
        )
    shutil.rmtree(folder, ignore_errors=True)
