"""One task of an array that writes buckets: ``python -m pamp_pipelines.conversion.array_worker BUCKETS.json``.

Started again after a kill or a preemption it goes on with the buckets that have no receipt.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pamp_pipelines.conversion.array import EXIT_INPUT, Buckets
from pamp_pipelines.conversion.buckets import ImportBucket
from pamp_pipelines.conversion.write_chunks import write_bucket
from pamp_pipelines.errors import InputError
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
    buckets = Buckets.model_validate_json(file.read_bytes())
    for bucket in list(zip(buckets.files, buckets.plans, buckets.bytes, strict=True))[task::tasks]:
        try:
            write_bucket(ImportBucket(*bucket), moved)
        except InputError as error:
            log.write("failed", message=str(error))
            print(f"error: {error}", file=sys.stderr, flush=True)
            return EXIT_INPUT
        moved.tell()
    return 0


if __name__ == "__main__":
    run_main(main)
