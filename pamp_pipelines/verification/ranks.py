"""Groups of processes that have Megatron imported: forked, not started, since its import costs more than most checks.

A process may be forked only before it has threads or process groups of its own. So a server is forked from the worker
right after Megatron's import; it stays as it is and forks the ranks of each task.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

RankFunction = Callable[[Any, int], None]
"""Called in each rank with the task and the number of the rank."""

_FORK = multiprocessing.get_context("fork")
_ERROR = "rank{}.error"


class RankServer:
    """Runs a function in groups of ranks, one group after the other.

    Args:
        function: what a rank does.
    """

    def __init__(self, function: RankFunction) -> None:
        self._ours, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(function, theirs, self._ours))
        self._process.start()
        theirs.close()

    def run(self, task: Any, processes: int, folder: Path) -> str | None:
        """Run a task; returns what its first failing rank said, None where all ended well.

        Args:
            task: given to the function.
            processes: how many ranks.
            folder: a directory for messages of failing ranks.
        """
        self._ours.send((task, processes, folder))
        try:
            failure: str | None = self._ours.recv()
        except EOFError:
            return "the process that starts the ranks was killed"
        return failure

    def __enter__(self) -> RankServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ours.close()
        self._process.join()


def _serve(
    function: RankFunction,
    connection: multiprocessing.connection.Connection[Any, Any],
    parents: multiprocessing.connection.Connection[Any, Any],
) -> None:
    parents.close()  # or the end of the parent would not be seen here
    while True:
        try:
            task, processes, folder = connection.recv()
        except EOFError:
            return
        connection.send(_run_group(function, task, processes, folder))


def _run_group(function: RankFunction, task: Any, processes: int, folder: Path) -> str | None:
    ranks = [_FORK.Process(target=_rank, args=(function, task, n, processes, folder)) for n in range(processes)]
    for rank in ranks:
        rank.start()
    running = {rank.sentinel: rank for rank in ranks}
    failed = False
    while running and not failed:
        for sentinel in multiprocessing.connection.wait(list(running)):
            rank = running.pop(sentinel)  # type: ignore[arg-type]
            rank.join()
            failed = failed or rank.exitcode != 0
    for rank in running.values():
        rank.kill()  # it would wait for the one that failed
        rank.join()
    return _first_message(folder) if failed else None


def _rank(function: RankFunction, task: Any, number: int, processes: int, folder: Path) -> None:
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(processes)}
    try:
        function(task, number)
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".strip().splitlines()
        (folder / _ERROR.format(number)).write_text(text[0] if text else type(error).__name__)
        os._exit(1)
    os._exit(0)  # nothing of the parent's may be flushed or joined here


def _first_message(folder: Path) -> str:
    """The message of the rank that failed first: those that waited for it fail after it, for that reason alone."""
    messages = sorted(folder.glob(_ERROR.format("*")), key=lambda file: file.stat().st_mtime_ns)
    return messages[0].read_text() if messages else "a rank was killed, probably for want of memory"
