"""Running one conversion in a worker process and handing back what it found."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from pamp_pipelines.errors import DiskFull
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.events import OnEvent, event
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.publish import siblings
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.launchers.prepared import remove

Stage = Literal["import", "export"]

Verify = Callable[[Path], Sequence[CheckResult]]
"""Judges the finished files of a conversion, before they get their final name; the verdicts go into the manifest."""

WORKER = "pamp_pipelines.conversion.worker"
RESULT = "result.json"


class Result(BaseModel):
    """What a worker leaves behind: figures, verdicts, and sentences that the user should read."""

    stats: dict[str, Any] = {}
    checks: list[CheckResult] = []
    warnings: list[str] = []


def run_stage(stage: Stage, job: BaseModel, target: Path, work_dir: Path, on_event: OnEvent) -> Result:
    """Runs the worker with `job`; it writes into `target`. `work_dir` holds log and events; success removes it.

    Raises:
        DiskFull: nothing is left behind then, not even a log.
        WorkerFailed: with the worker's last lines and the place of its log.
    """
    work_dir.mkdir(parents=True)
    job_file = work_dir / "job.json"
    try:
        write_json(job_file, {"stage": stage, "job": job.model_dump(mode="json"), "target": str(target)})
        run_worker(WORKER, job_file, work_dir, on_event=on_event)
    except DiskFull:
        shutil.rmtree(work_dir, ignore_errors=True)
        raise DiskFull(work_dir.parent) from None  # the log that it names is gone
    except OSError:
        shutil.rmtree(work_dir, ignore_errors=True)
        raise
    result = Result.model_validate(json.loads((work_dir / RESULT).read_text()))
    for message in result.warnings:
        on_event(event("warning", message=message))
    shutil.rmtree(work_dir, ignore_errors=True)
    return result


def end_earlier(output: Path, endings: Sequence[str], on_event: OnEvent) -> None:
    """End what earlier conversions into `output` left running: it would write the same files beside this one.

    An array (`array`) goes on when its caller is killed, a worker of this machine (`run.partial`) when its supervisor
    is killed with its caller. Call while holding the lock of `output`.

    Raises:
        LauncherError: a cluster that would know does not answer.
    """
    for ending in endings:
        for folder in siblings(output, ending):
            if remove(folder):
                on_event(event("warning", message=f"ended what an earlier conversion into {output} left running"))


def work_dir(output: Path) -> Path:
    """A folder beside `output` for one run; the next build of `output` sweeps what a failed run left there."""
    return output.parent / f".{output.name}.{secrets.token_hex(4)}.run.partial"
