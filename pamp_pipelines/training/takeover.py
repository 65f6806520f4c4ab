"""Going on with a run of another machine: its newest published checkpoint becomes the resume point here."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_bytes
from pamp_pipelines.lake.mirror import CATALOGUE, mirror_of
from pamp_pipelines.lake.remote import ObjectMissing
from pamp_pipelines.lake.staging import obtainable, stage
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.kept import read_record, recorded_steps
from pamp_pipelines.training.saved import Saved


def fetch_resume_point(job: TrainJob, warn: Callable[[str], None]) -> int | None:
    """In a remote lake, have the newest published checkpoint here, where no newer one is whole here.

    Call it while nobody trains. Does nothing in a local lake. Killed before all of its files are here, it fetches the
    others when it is called again.

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
    if (mirror := mirror_of(job.run_dir)) is None:
        return None
    saved = Saved(job.checkpoints_dir)
    newest = next((step for step in reversed(saved.steps()) if saved.problem(step) is None), 0)
    for step in reversed(recorded_steps(job.run_dir)):
        if step < newest:
            break
        try:
            record = read_record(job.run_dir, step)
        except InputError as error:
            warn(f"passed over: {error}")
            continue
        # step 0 of an import has no files of its own
        if record.files and obtainable(job.run_dir, record):
            # the files that its index does not point to count too
            if not stage(job.run_dir, record):
                break
            with contextlib.suppress(ObjectMissing):
                # those here may be of before the other machine took the run over
                write_bytes(job.metrics_path, mirror.store.read(f"{CATALOGUE}/{mirror.rel(job.metrics_path)}"))
            warn(f"{_name(job.run_dir)} goes on from step {step}, the newest checkpoint that is published")
            return step
    return None


def _name(run_dir: Path) -> str:
    return "/".join(run_dir.parts[-3:])
