"""Buckets of an import written on a cluster, for an import that then finds them finished.

The job needs the folder of the buckets and the source at the same paths on all machines. Which task wrote a bucket
does not show in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.conversion.buckets import assign, buckets_dir, sweep_buckets, write_plans
from pamp_pipelines.conversion.job import ImportJob
from pamp_pipelines.conversion.plan import ImportPlan
from pamp_pipelines.conversion.progress import Progress
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, WorkerFailed
from pamp_pipelines.lake.events import Event, EventKind, OnEvent, event
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.prepared import prepared, remove, still_runs

WORKER = "pamp_pipelines.conversion.array_worker"
EXIT_INPUT = 2


class Buckets(BaseModel):
    """What the tasks of an array share: task n of m writes every m-th bucket, from the n-th."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[Path, ...]
    plans: tuple[Path, ...]
    bytes: tuple[int, ...]


class _Heard:
    """Progress of all tasks together, told as that of one conversion."""

    def __init__(self, on_event: OnEvent, total_bytes: int) -> None:
        self._on_event = on_event
        self._progress = Progress(self, "import", total_bytes)

    def write(self, kind: EventKind, **data: Any) -> None:
        self._on_event(event(kind, **data))

    def __call__(self, heard: Event) -> None:
        if heard.kind == "progress":
            self._progress(heard.data["moved_bytes"])
        elif heard.kind != "failed":  # its words are in the error
            self._on_event(heard)


def write_buckets_on(profile: ComputeProfile, job: ImportJob, plan: ImportPlan, on_event: OnEvent) -> None:
    """Write all buckets of an import in an array of at most ``profile.world_size`` tasks.

    Those that an earlier import finished are left as they are. An array that a killed caller left is watched, not
    started a second time.

    Raises:
        InputError: the source is bad, or the cluster refuses the job.
        WorkerFailed: a task failed; finished buckets are kept for the next import.
    """
    folder = buckets_dir(job)
    work = folder.with_suffix(".array")
    for other in folder.parent.glob(f".{job.output.name}.*.array"):
        if other != work:
            remove(other)
    sweep_buckets(job, keep=folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = assign(plan.sizes)
    totals = [0] * (max(names) + 1)
    for bucket, size in zip(names, plan.sizes, strict=True):
        totals[bucket] += size
    files = tuple(folder / f"__{bucket}_0.distcp" for bucket in range(len(totals)))
    plans = tuple(file.with_suffix(".plan") for file in files)
    text = Buckets(files=files, plans=plans, bytes=tuple(totals)).model_dump_json(indent=2) + "\n"
    if not still_runs(work, text):
        write_plans(plan, names, folder)
    file = prepared(work, text)
    count = min(profile.world_size, len(files))
    try:
        run_worker(WORKER, file, work, profile=profile, on_event=_Heard(on_event, plan.bytes), tasks=count)
    except WorkerFailed as error:
        if error.exit_code == EXIT_INPUT:
            raise InputError(str(error)) from error  # a retry cannot help
        raise
    remove(work)
