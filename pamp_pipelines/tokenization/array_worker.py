"""One task of a tokenizing array: ``python -m pamp_pipelines.tokenization.array_worker PLAN.json``.

Makes every n-th piece of the plan, those that are complete left out, and says so in an event log of its own. Started
again after a kill or a preemption it goes on with the pieces that are missing.
"""

import os
import sys
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.base import TASK, TASKS, event_logs
from pamp_pipelines.launchers.disk import run_main
from pamp_pipelines.tokenization.pieces import PieceMaker, Plan, Staging

EXIT_INPUT = 2


def main(plan_file: Path) -> int:
    """Returns the exit status; the current folder is the run's."""
    task, tasks = int(os.environ[TASK]), int(os.environ[TASKS])
    log = EventLog(Path(event_logs(tasks)[task]))
    staging = Staging(plan_file.parent)
    try:
        plan = Plan.model_validate_json(plan_file.read_bytes())
        maker = PieceMaker(plan, staging)
        for number in range(task, len(plan.tasks), tasks):
            if staging.finished(number):
                continue
            before = 0

            def report(rows: int, text_bytes: int, tokens: int) -> None:
                nonlocal before
                log.write("progress", rows=rows, text_bytes=text_bytes, tokens=tokens - before)
                before = tokens

            maker.make(number, report)
    except InputError as error:
        log.write("failed", message=str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_INPUT
    return 0


if __name__ == "__main__":
    run_main(main)
