"""The stage function: score a model in a worker process and publish one artifact per evaluation."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answers import delete_answers
from pamp_pipelines.evaluation.export_cache import leased
from pamp_pipelines.evaluation.spec import KIND, EvaluateJob, EvaluationSpec
from pamp_pipelines.lake.artifact import Artifact, find
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.integrity import find_intact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.publish import lock, publish
from pamp_pipelines.lake.staging import here
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.prepared import end, prepared, remove

WORKER = "pamp_pipelines.evaluation.worker"
_DONE = "done.json"
_ARRAY = "array.txt"
"""In a job's folder: the folder of the array that writes to it."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def evaluate(job: EvaluateJob, on_event: OnEvent = ignore) -> list[Artifact]:
    """Score ``job.subject``; returns one ``eval_scores`` artifact per evaluation, in the job's order.

    Finished ones are found, the others share one worker and one loaded model. What the worker finished before it
    failed is published all the same.

    Args:
        job: what to score on what.
        on_event: gets the worker's events: loading, requests done, each metric.

    Raises:
        InputError: a model, task or file is wrong.
        WorkerFailed: the worker ended badly; its message holds the reason and the last lines of its log.
    """
    with locks([job], on_event):
        if todo := unscored(job, on_event):
            with leases([todo]):
                _run(todo, on_event)
    return scored(job)


def unscored(job: EvaluateJob, on_event: OnEvent = ignore) -> EvaluateJob | None:
    """The job without what is finished; None when nothing is left."""
    missing = tuple(spec for spec in job.evaluations if find_intact(spec.output, spec.id, on_event) is None)
    return job.model_copy(update={"evaluations": missing}) if missing else None


def scored(job: EvaluateJob) -> list[Artifact]:
    """The scores that are there, in the job's order."""
    found = [find(spec.output, spec.id) for spec in job.evaluations]
    return [artifact for artifact in found if artifact is not None]


def environment() -> dict[str, str]:
    """The hub is reached only where the caller's environment asks for it; everything shipped here is local."""
    return {name: os.environ.get(name, value) for name, value in _OFFLINE.items()}


def stage_text(job: EvaluateJob) -> None:
    """In a remote lake, have the shards here that a run was trained on, and those whose held-out text is scored."""
    prefixes = [prefix for spec in job.evaluations for prefix in spec.heldout]
    if job.subject.baseline is not None:
        prefixes += [*job.subject.baseline.train, *job.subject.baseline.heldout]
    for folder in dict.fromkeys(prefix.parent for prefix in prefixes):
        here(folder)


def collect(job: EvaluateJob) -> None:
    """Publish what a worker has finished."""
    for spec in job.evaluations:
        if (job.work / spec.name / _DONE).is_file():
            _publish(job, spec)


def claim(job: EvaluateJob, array: Path) -> None:
    """Note in the job's folder which array will write to it, and end what else may still do so.

    Args:
        array: folder of the array's handle.

    Raises:
        LauncherError: a cluster that would know does not answer.
    """
    end(job.work)
    end_array(job, keep=array)
    job.work.mkdir(parents=True, exist_ok=True)
    write_text(job.work / _ARRAY, str(array))


def end_array(job: EvaluateJob, keep: Path | None = None) -> None:
    """End the array that a killed caller left writing to the job's folder, together with its other models.

    Their callers are gone too: who calls holds the locks of this job, which they would hold.

    Args:
        keep: the folder of one that is left as it is.

    Raises:
        LauncherError: a cluster that would know does not answer.
    """
    with contextlib.suppress(FileNotFoundError):
        array = Path((job.work / _ARRAY).read_text())
        if array != keep:
            remove(array)


def forget(job: EvaluateJob) -> None:
    """Remove what is of no use once all is published."""
    shutil.rmtree(job.work, ignore_errors=True)
    delete_answers(job.answers)


def _run(job: EvaluateJob, on_event: OnEvent) -> None:
    stage_text(job)
    end_array(job)
    file = prepared(job.work, job.model_dump_json(indent=2) + "\n")
    try:
        run_worker(WORKER, file, job.work, profile=job.profile, on_event=on_event, env=environment())
    finally:
        collect(job)
    forget(job)


def _publish(job: EvaluateJob, spec: EvaluationSpec) -> None:
    folder = job.work / spec.name
    done = json.loads((folder / _DONE).read_text())
    declaration = {
        "subject": job.subject.model_dump(mode="json", exclude={"directory", "inputs", "baseline"}),
        "evaluation": spec.model_dump(
            mode="json", exclude={"id", "output", "tasks", "predecessor", "heldout", "inputs"}
        ),
        "tasks": [task.model_dump(mode="json", exclude={"yaml", "data", "folders", "datasets"}) for task in spec.tasks],
    }
    inputs = (*job.subject.inputs, *spec.inputs)
    with publish(spec.output, kind=KIND, id=spec.id, inputs=inputs, declaration=declaration) as draft:
        for source in sorted(folder.iterdir()):
            if source.name != _DONE:
                shutil.copyfile(source, draft.dir / source.name)
        draft.stats.update(done["stats"])
        draft.checks.extend(CheckResult.model_validate(check) for check in done["checks"])
    shutil.rmtree(folder)


@contextlib.contextmanager
def locks(jobs: Iterable[EvaluateJob], on_event: OnEvent) -> Iterator[None]:
    """Hold the right to build every output, taken in one order so that two callers cannot wait for each other.

    Raises:
        InputError: two evaluations have one name, or one output: the second would wait for the first for ever.
    """
    jobs = list(jobs)
    for job in jobs:
        if twice := _repeated(spec.name for spec in job.evaluations):
            raise InputError(
                f"evaluations of one job need different names, and {', '.join(map(repr, twice))} is there twice: name "
                "it once; of two task files with one name rename one, or score them in two calls."
            )
    outputs = sorted(spec.output for job in jobs for spec in job.evaluations)
    if again := _repeated(outputs):
        raise InputError(f"{again[0]}: two of the jobs write their scores here; give each model once.")
    with contextlib.ExitStack() as stack:
        for output in outputs:
            stack.enter_context(lock(output, on_event))
        yield


def _repeated[T](items: Iterable[T]) -> list[T]:
    """What is there more than once."""
    return [item for item, times in Counter(items).items() if times > 1]


@contextlib.contextmanager
def leases(jobs: Iterable[EvaluateJob]) -> Iterator[None]:
    """Keep the exports of these jobs from being evicted; a plain directory is nobody's to evict."""
    with contextlib.ExitStack() as stack:
        for job in jobs:
            if job.subject.inputs:
                stack.enter_context(leased(job.subject.directory))
        yield
