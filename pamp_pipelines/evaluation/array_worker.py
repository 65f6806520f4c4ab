"""One task of an array of evaluations: ``python -m pamp_pipelines.evaluation.array_worker JOBS.json``.

Started again after a kill or a preemption it leaves out what it had finished. A model that cannot be scored keeps no
other one waiting: the task goes on and ends with status 1.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from pamp_pipelines.errors import PampError
from pamp_pipelines.evaluation.array import Jobs
from pamp_pipelines.evaluation.worker import DONE, score_all
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.base import TASK, TASKS, event_logs
from pamp_pipelines.launchers.disk import is_no_space, run_main


def main(path: Path) -> int:
    """Returns the exit status; the current folder is the array's."""
    task, tasks = int(os.environ[TASK]), int(os.environ[TASKS])
    log = EventLog(Path(event_logs(tasks)[task]))
    status = 0
    for job in Jobs.model_validate_json(path.read_bytes()).jobs[task::tasks]:
        left = tuple(spec for spec in job.evaluations if not (job.work / spec.name / DONE).is_file())
        if not left:
            continue
        job.work.mkdir(parents=True, exist_ok=True)
        try:
            score_all(job.model_copy(update={"evaluations": left}), log)
        except Exception as error:
            if is_no_space(error):
                raise  # no other model can be scored either
            status = 1
            known = isinstance(error, PampError)
            reason = f"{job.subject.directory}: {error if known else f'{type(error).__name__}: {error}'}"
            log.write("failed", message=reason)
            print(f"error: {reason}", file=sys.stderr, flush=True)
            if not known:
                traceback.print_exc()
    return status


if __name__ == "__main__":
    run_main(main)
