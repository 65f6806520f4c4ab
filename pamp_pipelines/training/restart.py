"""Make a run's files fit to resume from: ``python -m pamp_pipelines.training.restart JOB.json``.

A cluster that starts a job again by itself, after preemption or for another node, runs this before the ranks.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from pamp_pipelines.errors import InfrastructureFailed, PampError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.training.job import TrainJob, read_job
from pamp_pipelines.training.kept import record_path, recorded_steps
from pamp_pipelines.training.metrics import cut_metrics
from pamp_pipelines.training.saved import Saved
from pamp_pipelines.training.takeover import fetch_resume_point
from pamp_pipelines.training.worker import EXIT_INPUT


def prepare(job: TrainJob, warn: Callable[[str], None]) -> int | None:
    """Remove what a killed save left, and metrics and records after the newest whole checkpoint, while nobody trains.

    In a remote lake a newer one that is published is fetched, also in place of one whose bytes are damaged here.

    Returns:
        The step to resume from; None to start at the beginning.

    Raises:
        As `fetch_resume_point` and `Saved.sweep`.
    """
    saved = Saved(job.checkpoints_dir)
    fetch_resume_point(job, warn)
    step = saved.sweep(warn)
    if max(recorded_steps(job.run_dir), default=0) > (step or 0) and fetch_resume_point(job, warn):
        step = saved.sweep(warn)
    cut_metrics(job.metrics_path, step)
    for lost in recorded_steps(job.run_dir):
        if lost > (step or 0):
            # what is saved there again is the same, but not its files
            record_path(job.run_dir, lost).unlink()
            warn(f"step {lost} was kept and is lost; it is trained again")
    return step


def main(job_path: Path) -> int:
    """Returns the exit status."""
    try:
        job = read_job(job_path)
        log = EventLog(job.events_path)
        step = prepare(job, lambda message: log.write("warning", message=message))
        log.write("warning", message=f"the cluster starts the run again, from step {step or 0}")
    except PampError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        # storage that does not answer is worth another attempt
        return 1 if isinstance(error, InfrastructureFailed) else EXIT_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
