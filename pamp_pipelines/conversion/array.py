"""Buckets of a conversion written on a cluster, for a conversion that then finds them finished.

The job needs the folder of the buckets and what is converted at the same paths on all machines. Which task wrote a
bucket does not show in it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.conversion.buckets import assign, buckets_dir, sweep_buckets, write_plans
from pamp_pipelines.conversion.export_buckets import begin_files, export_buckets
from pamp_pipelines.conversion.export_plan import ExportPlan
from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.conversion.plan import ImportPlan
from pamp_pipelines.conversion.progress import Progress, Told
from pamp_pipelines.conversion.stage import Stage
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, WorkerFailed
from pamp_pipelines.lake.events import Event, OnEvent
from pamp_pipelines.lake.publish import siblings
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.prepared import prepared, remove, still_runs

WORKER = "pamp_pipelines.conversion.array_worker"
EXIT_INPUT = 2


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ImportBuckets(_Frozen):
    """Buckets of an import: their files, the files of their plans, and their bytes."""

    files: tuple[Path, ...]
    plans: tuple[Path, ...]
    bytes: tuple[int, ...]


class ExportBuckets(_Frozen):
    """Buckets of an export, which each task plans for itself from the checkpoint's index."""

    job: ExportJob


class Work(_Frozen):
    """What the tasks of an array share: task n of m writes every m-th bucket, from the n-th."""

    buckets: ImportBuckets | ExportBuckets


class _Heard:
    """Progress of all tasks together, told as that of one conversion."""

    def __init__(self, on_event: OnEvent, stage: Stage, total_bytes: int) -> None:
        self._on_event = on_event
        self._progress = Progress(Told(on_event), stage, total_bytes)

    def __call__(self, heard: Event) -> None:
        if heard.kind == "progress":
            self._progress(heard.data["moved_bytes"])
        elif heard.kind != "failed":  # its words are in the error
            self._on_event(heard)


def write_import_on(profile: ComputeProfile, job: ImportJob, plan: ImportPlan, on_event: OnEvent) -> None:
    """Write all buckets of an import in an array of at most ``profile.world_size`` tasks.

    Those that an earlier import finished are left as they are. An array that a killed caller left is watched, not
    started a second time.

    Raises:
        InputError: the source is bad, or the cluster refuses the job.
        WorkerFailed: a task failed; finished buckets are kept for the next import.
    """
    folder = _folder(job)
    names = assign(plan.sizes)
    totals = [0] * (max(names) + 1)
    for bucket, size in zip(names, plan.sizes, strict=True):
        totals[bucket] += size
    files = tuple(folder / f"__{bucket}_0.distcp" for bucket in range(len(totals)))
    plans = tuple(file.with_suffix(".plan") for file in files)
    work = Work(buckets=ImportBuckets(files=files, plans=plans, bytes=tuple(totals)))
    if not still_runs(_run_folder(folder), _text(work)):
        write_plans(plan, names, folder)
    _run(profile, folder, work, len(files), _Heard(on_event, "import", plan.bytes))


def write_export_on(profile: ComputeProfile, job: ExportJob, plan: ExportPlan, on_event: OnEvent) -> None:
    """Write all buckets of an export, as `write_import_on` those of an import.

    Raises:
        InputError: the checkpoint is bad, or the cluster refuses the job.
        WorkerFailed: a task failed; finished buckets are kept for the next export.
    """
    folder = _folder(job)
    begin_files(plan, folder)
    count = sum(1 for _ in export_buckets(job.checkpoint, plan, folder, hashed=False))
    # what only the caller's own processes go by: a call from a machine of other cores finds the array again
    shared = job.model_copy(update={"workers": 1, "memory_bytes": 1})
    work = Work(buckets=ExportBuckets(job=shared))
    _run(profile, folder, work, count, _Heard(on_event, "export", plan.weight_bytes))


def _folder(job: ImportJob | ExportJob) -> Path:
    """The folder of the buckets, after removing what conversions of other inputs left beside it."""
    folder = buckets_dir(job)
    for other in siblings(job.output, "array"):
        if other != _run_folder(folder):
            remove(other)
    sweep_buckets(job, keep=folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run_folder(folder: Path) -> Path:
    """Handle, logs and events of the array, beside the buckets."""
    return folder.with_suffix(".array")


def _text(work: Work) -> str:
    return work.model_dump_json(indent=2) + "\n"


def _run(profile: ComputeProfile, folder: Path, work: Work, buckets: int, heard: _Heard) -> None:
    run_dir = _run_folder(folder)
    file = prepared(run_dir, _text(work))
    try:
        run_worker(WORKER, file, run_dir, profile=profile, on_event=heard, tasks=min(profile.world_size, buckets))
    except WorkerFailed as error:
        if error.exit_code == EXIT_INPUT:
            raise InputError(str(error)) from error  # a retry cannot help
        raise
    remove(run_dir)
