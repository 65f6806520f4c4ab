"""Going on with a run of another machine: its newest published checkpoint becomes the resume point here."""

from collections.abc import Callable
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.mirror import mirror_of
from pamp_pipelines.lake.staging import obtainable, stage
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.kept import read_record, recorded_steps
from pamp_pipelines.training.saved import Saved


def fetch_resume_point(job: TrainJob, warn: Callable[[str], None]) -> int | None:
    """In a remote lake, have a checkpoint here from which a version can go on that has none here.

    Call it while nobody trains. Does nothing in a local lake.

    Args:
        job: of a version that this working directory owns.
        warn: is told from which step the run goes on.

    Returns:
        The step; None where nothing was fetched.

    Raises:
        StorageError, InputError: the store does not answer.
        VerificationFailed: a file of it is missing or damaged there.
        CacheTooSmall: there is no room for it.
    """
    if mirror_of(job.run_dir) is None or Saved(job.checkpoints_dir).steps():
        return None
    for step in reversed(recorded_steps(job.run_dir)):
        try:
            record = read_record(job.run_dir, step)
        except InputError as error:
            warn(f"passed over: {error}")
            continue
        # step 0 of an import has no files of its own
        if record.files and obtainable(job.run_dir, record):
            stage(job.run_dir, record)
            warn(f"{_name(job.run_dir)} goes on from step {step}, the newest checkpoint that another machine published")
            return step
    return None


def _name(run_dir: Path) -> str:
    return "/".join(run_dir.parts[-3:])
