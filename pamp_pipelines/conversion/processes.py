"""Running the buckets of a conversion in processes of their own, with one stream of progress back."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
from collections.abc import Callable, Sequence
from typing import Any, cast

from pamp_pipelines.errors import PampError

Report = Callable[[int], None]
"""Called by a bucket's function with the number of bytes moved since its last call."""


def run_buckets[B, R](
    function: Callable[[B, Report], R], buckets: Sequence[B], processes: int, report: Report
) -> list[R]:
    """The results of `function(bucket, report)` in the order of the buckets, computed in at most `processes` processes.

    `function` and the buckets must be picklable. With one process the work is done in this one. The first failure ends
    all others and is raised here.

    Raises:
        PampError: what a bucket raised, or that its process was killed.
        OSError: what a bucket raised; the disk is full.
    """
    count = min(processes, len(buckets))
    if count <= 1:
        return [function(bucket, report) for bucket in buckets]
    context = multiprocessing.get_context("spawn")  # fork would copy locks of threads that the caller may run
    children, receivers = [], []
    try:
        for i in range(count):
            receiver, sender = context.Pipe(duplex=False)
            mine = list(enumerate(buckets))[i::count]
            child = context.Process(target=_child, args=(function, mine, sender), daemon=True)
            child.start()
            sender.close()
            children.append(child)
            receivers.append(receiver)
        return _collect(children, receivers, len(buckets), report)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.join()


def _child(
    function: Callable[[Any, Report], Any],
    buckets: list[tuple[int, Any]],
    sender: multiprocessing.connection.Connection,
) -> None:
    try:
        for number, bucket in buckets:
            sender.send(("done", (number, function(bucket, lambda count: sender.send(("moved", count))))))
    except (PampError, OSError) as error:
        sender.send(("failed", error))


def _collect(children: list[Any], receivers: list[Any], count: int, report: Report) -> list[Any]:
    results: dict[int, Any] = {}
    open_ends = dict(zip(receivers, children, strict=True))
    while len(results) < count:
        for ready in multiprocessing.connection.wait(list(open_ends)):
            try:
                kind, value = cast(Any, ready).recv()
            except EOFError:
                child = open_ends.pop(cast(Any, ready))
                child.join()
                if child.exitcode:
                    raise PampError(_ended(child.exitcode)) from None
                continue
            if kind == "moved":
                report(value)
            elif kind == "failed":
                raise value
            else:
                results[value[0]] = value[1]
    return [results[i] for i in range(count)]


def _ended(exit_code: int) -> str:
    if exit_code == -9:
        return "a conversion process was killed (signal 9), probably for want of memory; lower `workers`"
    return f"a conversion process ended with exit status {exit_code}; its traceback is in the log"
