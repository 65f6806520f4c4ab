"""A tokenizing process: ``python -m pamp_pipelines.tokenization.worker FOLDER``.

It reads task numbers from its standard input and writes a JSON object a line to its standard output:
``{"rows", "text_bytes", "tokens"}`` while it works, ``{"done": task}``, or ``{"failed": message, "kind": class}``. It
ends with its input, so also with a parent that is killed: at most the pieces in work are lost then.
"""

import fcntl
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import orjson

from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.launchers.disk import is_no_space
from pamp_pipelines.tokenization.pieces import PieceMaker, Plan, Staging

_REPORT_S = 0.5


def main(folder: str) -> None:
    staging = Staging(Path(folder))
    tasks: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    with (staging.folder / "lock").open("r") as lock:
        # tells a later build that this one may still write
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            plan = Plan.model_validate_json(staging.plan_file.read_bytes())
            maker = PieceMaker(plan, staging)
            while (task := tasks.get()) is not None:
                report = _Report()
                maker.make(task, report.add)
                report.send()
                _say(done=task)
        except PampError as error:
            _say(failed=str(error), kind="input" if isinstance(error, InputError) else "other")
        except OSError as error:
            if not is_no_space(error):
                raise
            _say(failed=str(error), kind="full")


class _Report:
    """Sums counters and sends them twice a second."""

    def __init__(self) -> None:
        self._rows = self._text_bytes = self._tokens = self._sent = 0
        self._time = time.monotonic()

    def add(self, rows: int, text_bytes: int, tokens: int) -> None:
        self._rows += rows
        self._text_bytes += text_bytes
        self._tokens = tokens
        if time.monotonic() - self._time > _REPORT_S:
            self.send()

    def send(self) -> None:
        _say(rows=self._rows, text_bytes=self._text_bytes, tokens=self._tokens - self._sent)
        self._rows = self._text_bytes = 0
        self._sent = self._tokens
        self._time = time.monotonic()


def _listen(tasks: "queue.SimpleQueue[int | None]") -> None:
    for line in sys.stdin:
        if line.strip() == "end":
            tasks.put(None)
            return
        tasks.put(int(line))
    os._exit(1)  # nobody is left to work for


def _say(**message: Any) -> None:
    os.write(1, orjson.dumps(message) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
