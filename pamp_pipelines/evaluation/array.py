"""Many models scored at once: an array job of a cluster, whose tasks take turns at the list of jobs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.run import (
    claim,
    collect,
    environment,
    forget,
    leases,
    locks,
    scored,
    stage_text,
    unscored,
)
from pamp_pipelines.evaluation.spec import EvaluateJob
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.hashing import sha256_json
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.prepared import prepared

WORKER = "pamp_pipelines.evaluation.array_worker"


class Jobs(BaseModel):
    """What the tasks of an array share: task n of m does every m-th job, from the n-th."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs: tuple[EvaluateJob, ...]


def evaluate_many(
    jobs: Sequence[EvaluateJob], profile: ComputeProfile, folder: Path, on_event: OnEvent = ignore
) -> list[Artifact]:
    """Score several models in an array of at most ``profile.world_size`` tasks.

    Finished scores are found. What tasks finished is published also where others failed, and an array that a killed
    caller left is watched, not started a second time; one of another list of jobs that has one of these is ended.

    Args:
        jobs: of different models; each with a ``work`` folder that all machines see.
        profile: of a cluster.
        folder: where arrays keep their logs; removed when all went well.
        on_event: gets the events of all tasks.

    Returns:
        The artifacts in the order of the jobs and their evaluations.

    Raises:
        InputError: the profile is this machine's, which has no queue; or the cluster refuses the job.
        WorkerFailed: a task failed; the first one that did is named.
    """
    if profile.launcher == "local":
        raise InputError("an array needs a profile of a cluster (`launcher: slurm` or `kubernetes`)")
    with locks(jobs, on_event):
        todo = [left for job in jobs if (left := unscored(job, on_event)) is not None]
        if todo:
            with leases(todo):
                _run(todo, profile, folder, on_event)
    return [artifact for job in jobs for artifact in scored(job)]


def _run(jobs: Sequence[EvaluateJob], profile: ComputeProfile, folder: Path, on_event: OnEvent) -> None:
    for job in jobs:
        stage_text(job)
    text = Jobs(jobs=tuple(jobs)).model_dump_json(indent=2) + "\n"
    work = folder.absolute() / f".array-{sha256_json(text)[:12]}"
    for job in jobs:
        claim(job, work)
    file = prepared(work, text)
    count = min(profile.world_size, len(jobs))
    try:
        run_worker(WORKER, file, work, profile=profile, on_event=on_event, env=environment(), tasks=count)
    finally:
        for job in jobs:
            collect(job)
    for job in jobs:
        forget(job)
    shutil.rmtree(work, ignore_errors=True)
