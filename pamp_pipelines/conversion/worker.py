"""Runs one conversion: `python -m pamp_pipelines.conversion.worker JOB.json`; result and events go beside the job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.conversion.stage import RESULT, Result
from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.base import EVENTS
from pamp_pipelines.launchers.disk import run_main


def main(job_file: Path) -> int:
    """Exit status 0 when the result is complete; 1 with a `failed` event and a message otherwise."""
    events = EventLog(job_file.parent / EVENTS)
    try:
        result = _run(json.loads(job_file.read_text()), events)
    except PampError as error:
        events.write("failed", message=str(error))
        print(error, file=sys.stderr)
        return 1
    write_json(job_file.parent / RESULT, result.model_dump(mode="json"))
    return 0


def _run(task: dict, events: EventLog) -> Result:
    # imported here, since the processes that share the work import this module too
    target = Path(task["target"])
    match task["stage"]:
        case "import":
            from pamp_pipelines.conversion.import_work import run_import

            return run_import(ImportJob.model_validate(task["job"]), target, events)
        case "export":
            from pamp_pipelines.conversion.export_work import run_export

            return run_export(ExportJob.model_validate(task["job"]), target, events)
        case other:
            raise PampError(f"unknown conversion stage {other!r}")


if __name__ == "__main__":
    run_main(main)
