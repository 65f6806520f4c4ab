"""Room on the disk: a run that cannot save twice does not start."""

import shutil
from pathlib import Path

from pamp_pipelines.errors import PampError
from pamp_pipelines.training.footprint import checkpoint_bytes
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.saved import Saved

_SAVES = 2
"""The newest checkpoint stays until the next is complete."""


class TooLittleSpace(PampError):
    """Too little room for the checkpoints of a run; a retry helps once there is some."""


def require_space(job: TrainJob) -> None:
    """Refuse to start where two saves do not fit.

    A save that is there already and will be deleted when the next is complete counts as room for one.

    Raises:
        TooLittleSpace: says what is needed, what is free, and where.
    """
    size = checkpoint_bytes(job)
    saved = Saved(job.checkpoints_dir)
    rolling = [step for step in saved.steps() if step not in job.cadence]
    needed = size * max(1, _SAVES - min(len(rolling), _SAVES - 1))
    free = free_bytes(job.run_dir)
    if free < needed:
        raise TooLittleSpace(
            f"{job.run_dir}: {free / 1e9:.1f} GB are free; a save of {job.name} takes {size / 1e9:.1f} GB and "
            f"{needed / 1e9:.1f} GB are needed to start: make room, or let PAMP_LAKE name another disk."
        )


def free_bytes(directory: Path) -> int:
    """Bytes that an ordinary user may still write below a directory, which need not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free
