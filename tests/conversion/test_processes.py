"""Buckets in processes: results in order, progress, failures, killed children."""

import os
import signal
import time
from pathlib import Path

import pytest

from pamp_pipelines.conversion.processes import Report, run_buckets
from pamp_pipelines.errors import InputError, PampError


def work(bucket: tuple[str, float], report: Report) -> tuple[str, int]:
    what, seconds = bucket
    time.sleep(seconds)
    report(len(what))
    if what == "wrong":
        raise InputError("file x: wrong")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "bug":
        raise ZeroDivisionError
    return what, os.getpid()


def test_results_and_progress() -> None:
    moved: list[int] = []
    buckets = [("a", 0.2), ("bb", 0.0), ("ccc", 0.0)]
    results = run_buckets(work, buckets, 2, moved.append)
    assert [name for name, _ in results] == ["a", "bb", "ccc"]
    assert sum(moved) == 6
    processes = {pid for _, pid in results}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert {pid for _, pid in run_buckets(work, buckets, 1, moved.append)} == {os.getpid()}
    assert run_buckets(work, [], 2, moved.append) == []


@pytest.mark.parametrize(
    ("what", "words"), [("wrong", "file x: wrong"), ("killed", "killed \\(signal 9\\)"), ("bug", "exit status 1")]
)
def test_a_failure_ends_the_others(what: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(PampError, match=words):
        run_buckets(work, [(what, 0.0), ("slow", 60.0)], 2, lambda _: None)
    assert time.monotonic() - started < 30
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    assert not children.exists() or len(children.read_text().split()) <= 1  # multiprocessing's resource tracker
