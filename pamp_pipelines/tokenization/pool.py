"""Making all pieces of a plan: here, or in several processes that no parent stands in the way of."""

import errno
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from pamp_pipelines.corpus.progress import Progress
from pamp_pipelines.errors import InputError, PampError, WorkerFailed
from pamp_pipelines.tokenization.pieces import PieceMaker, Plan, Staging


class Counters:
    """Sums what the pieces report, and passes it on as progress."""

    def __init__(self, progress: Progress, rows: int = 0, text_bytes: int = 0, tokens: int = 0) -> None:
        self._progress = progress
        self.rows = rows
        self.text_bytes = text_bytes
        self.tokens = tokens

    def add(self, rows: int, text_bytes: int, tokens: int) -> None:
        self.rows += rows
        self.text_bytes += text_bytes
        self.tokens += tokens
        self._progress.update(documents=self.rows, megabytes=self.text_bytes / 1e6, tokens=self.tokens)


def make_pieces(plan: Plan, staging: Staging, tasks: Sequence[int], workers: int, counters: Counters) -> None:
    """Make the pieces of ``tasks``; with one worker in this process.

    Raises:
        InputError: a source is bad.
        WorkerFailed: a process ended by itself; names its last lines.
        OSError: ENOSPC, the disk is full.
    """
    if not tasks:
        return
    workers = min(workers, len(tasks))
    if workers == 1:
        _make_here(plan, staging, tasks, counters)
        return
    waiting = deque(tasks)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for number in range(workers):
            process = stack.enter_context(_worker(staging, number))
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, _Link(process, staging, number))
            selector.get_key(process.stdout).data.give(waiting)
        while selector.get_map():
            for key, _ in selector.select():
                for message in key.data.messages():
                    if message is None:
                        selector.unregister(key.fileobj)
                    elif "done" in message:
                        key.data.give(waiting)
                    elif "failed" in message:
                        raise _error(message)
                    else:
                        counters.add(**message)


def _make_here(plan: Plan, staging: Staging, tasks: Sequence[int], counters: Counters) -> None:
    maker = PieceMaker(plan, staging)
    for task in tasks:
        before = 0

        def add(rows: int, text_bytes: int, tokens: int) -> None:
            nonlocal before
            counters.add(rows, text_bytes, tokens - before)
            before = tokens

        maker.make(task, add)


class _Link:
    """This end of a worker's pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]", staging: Staging, number: int) -> None:
        self._process = process
        self._log = _log(staging, number)
        self._rest = b""
        self._told_to_end = False

    def give(self, waiting: "deque[int]") -> None:
        """The next task, or the word to end."""
        assert self._process.stdin is not None
        word = str(waiting.popleft()) if waiting else "end"
        self._told_to_end = word == "end"
        # one that has ended tells so when it is read from
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), word.encode() + b"\n")

    def messages(self) -> Iterator[dict[str, Any] | None]:
        """What it said since; None after its end.

        Raises:
            WorkerFailed: it ended before it was told to.
        """
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield orjson.loads(line)
        if not data:
            code = self._process.wait()
            if code or not self._told_to_end:
                last = self._log.read_text(errors="replace").splitlines()[-20:]
                raise WorkerFailed(
                    "a tokenizing process ended by itself; run again: finished pieces are kept", code, last
                )
            yield None


@contextmanager
def _worker(staging: Staging, number: int) -> Iterator["subprocess.Popen[bytes]"]:
    # the processes share the cores between them, so libraries must not start threads of their own
    env = os.environ | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with _log(staging, number).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pamp_pipelines.tokenization.worker", str(staging.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
        )
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _log(staging: Staging, number: int) -> Path:
    return staging.folder / f"worker-{number}.log"


def _error(message: dict[str, Any]) -> Exception:
    match message["kind"]:
        case "full":
            return OSError(errno.ENOSPC, message["failed"])
        case "input":
            return InputError(message["failed"])
    return PampError(message["failed"])
