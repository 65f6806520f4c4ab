"""One task of an array that writes buckets: ``python -m pamp_pipelines.conversion.array_worker WORK.json``.

Started again after a kill or a preemption it goes on with the buckets that have no receipt.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pamp_pipelines.conversion.array import EXIT_INPUT, ExportBuckets, ImportBuckets, Work
from pamp_pipelines.conversion.buckets import ImportBucket, buckets_dir
from pamp_pipelines.conversion.export_work import planned_buckets
from pamp_pipelines.conversion.exporter import plan_of
from pamp_pipelines.conversion.gather import gather_bucket
from pamp_pipelines.conversion.processes import Report
from pamp_pipelines.conversion.write_chunks import write_bucket
from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.base import TASK, TASKS, event_logs
from pamp_pipelines.launchers.disk import run_main

_INTERVAL_S = 0.5


class _Moved:
    """Bytes moved since they were last told of, at most every half second."""

    def __init__(self, log: EventLog) -> None:
        self._log, self._bytes, self._told = log, 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._bytes += count
        if time.monotonic() - self._told >= _INTERVAL_S:
            self.tell()

    def tell(self) -> None:
        if self._bytes:
            self._log.write("progress", moved_bytes=self._bytes)
        self._bytes, self._told = 0, time.monotonic()


def main(file: Path) -> int:
    """Returns the exit status; the current folder is the array's."""
    task, tasks = int(os.environ[TASK]), int(os.environ[TASKS])
    log = EventLog(Path(event_logs(tasks)[task]))
    moved = _Moved(log)
    try:
        for write in list(_writers(Work.model_validate_json(file.read_bytes()).buckets))[task::tasks]:
            write(moved)
            moved.tell()
    except PampError as error:
        log.write("failed", message=str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_INPUT if isinstance(error, InputError) else 1
    return 0


def _writers(work: ImportBuckets | ExportBuckets) -> Iterator[Callable[[Report], object]]:
    """One for each bucket, in an order that is the same in every task."""
    if isinstance(work, ImportBuckets):
        for bucket in zip(work.files, work.plans, work.bytes, strict=True):
            yield partial(write_bucket, ImportBucket(*bucket))
    else:
        _, _, plan = plan_of(work.job)
        for gathered in planned_buckets(work.job, plan, buckets_dir(work.job)):
            yield partial(gather_bucket, gathered)


if __name__ == "__main__":
    run_main(main)
