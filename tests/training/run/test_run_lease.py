"""The lease where an flock does not reach: a holder on another machine."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.training import lease as module
from pamp_pipelines.training.lease import LEASE, LeaseTaken, lease


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.2)


def elsewhere(run_dir: Path, **changes: Any) -> Path:
    file = run_dir / LEASE
    file.write_text(json.dumps({"host": "elsewhere", "pid": 7, "since": "2026-01-01T00:00:00Z"} | changes))
    return file


@contextlib.contextmanager
def beating(file: Path, clock: Callable[[], float]) -> Iterator[None]:
    """A heart on a machine whose clock shows other times."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.1):
            os.utime(file, (clock(), clock()))

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()


@pytest.mark.parametrize("skew", [0.0, 7200.0, -7200.0], ids=["right clock", "two hours ahead", "two hours behind"])
def test_a_beating_holder_on_another_machine_is_respected(skew: float, tmp_path: Path) -> None:
    file = elsewhere(tmp_path)
    with (
        beating(file, lambda: time.time() + skew),
        pytest.raises(LeaseTaken, match="process 7 on elsewhere"),
        lease(tmp_path),
    ):
        pass
    assert json.loads(file.read_text())["pid"] == 7


@pytest.mark.parametrize("skew", [0.0, 7200.0], ids=["right clock", "last touched in two hours"])
def test_a_silent_holder_on_another_machine_is_dead(skew: float, tmp_path: Path) -> None:
    file = elsewhere(tmp_path)
    os.utime(file, (time.time() + skew, time.time() + skew))
    with lease(tmp_path):
        assert json.loads(file.read_text())["pid"] == os.getpid()


def test_another_machine_of_the_same_name_is_another_machine(tmp_path: Path) -> None:
    file = elsewhere(tmp_path, host=socket.gethostname(), boot="another kernel")
    with beating(file, time.time), pytest.raises(LeaseTaken), lease(tmp_path):
        pass


def test_a_dead_process_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    with lease(tmp_path):
        boot = json.loads((tmp_path / LEASE).read_text())["boot"]
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    elsewhere(tmp_path, host=socket.gethostname(), boot=boot, pid=ended.pid)
    start = time.monotonic()
    with lease(tmp_path):
        assert time.monotonic() - start < 4 * module.HEARTBEAT_S  # it need not be watched


def test_of_two_machines_that_take_over_one_has_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = elsewhere(tmp_path)
    settle = module._settle

    def overtaken(run_dir: Path, mine: dict[str, Any]) -> None:
        elsewhere(run_dir, pid=8)
        settle(run_dir, mine)

    monkeypatch.setattr(module, "_settle", overtaken)
    with pytest.raises(LeaseTaken, match="process 8 on elsewhere"), lease(tmp_path):
        pass
    assert json.loads(file.read_text())["pid"] == 8


def test_a_lease_beats_while_it_is_held_and_is_free_at_once_afterwards(tmp_path: Path) -> None:
    with lease(tmp_path):
        before = (tmp_path / LEASE).stat().st_mtime_ns
        time.sleep(0.5)
        assert (tmp_path / LEASE).stat().st_mtime_ns > before
    assert (tmp_path / LEASE).read_text() == ""
