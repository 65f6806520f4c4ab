"""The folder and the job file of a worker that may outlive its caller."""

import shutil
from pathlib import Path

from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.launchers.worker import find_worker

JOB = "job.json"


def still_runs(work: Path, text: str) -> bool:
    """Whether a cluster still runs the worker of this very job, for a caller that is gone.

    A worker of another job is ended.

    Raises:
        LauncherError: a cluster that would know does not answer.
    """
    if (found := find_worker(work)) is None:
        return False
    launcher, handle = found
    file = work / JOB
    if launcher.outlives_caller and file.is_file() and file.read_text() == text:
        return True
    launcher.cancel(handle)
    return False


def prepared(work: Path, text: str) -> Path:
    """The job file with this text in a folder that is empty but for it.

    One whose worker `still_runs` is left as it is, for `run_worker` to find.
    """
    file = work / JOB
    if not still_runs(work, text):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        write_text(file, text)
    return file


def end(work: Path) -> bool:
    """End the worker that a folder may have; returns whether there was one.

    Raises:
        LauncherError: a cluster that would know does not answer, or does not end the worker.
    """
    if (found := find_worker(work)) is None:
        return False
    launcher, handle = found
    launcher.cancel(handle)
    return True


def remove(work: Path) -> bool:
    """Remove a folder that is of no use any more, after `end`; returns whether there was a worker."""
    ended = end(work)
    shutil.rmtree(work, ignore_errors=True)
    return ended
