"""The lease where an flock does not reach: a holder on another machine."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from pamp_pipelines.training import lease as module
from pamp_pipelines.training.lease import LEASE, LeaseTaken, lease


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.2)


def elsewhere(run_dir: Path) -> Path:
    file = run_dir / LEASE
    file.write_text(json.dumps({"host": "elsewhere", "pid": 7, "since": "2026-01-01T00:00:00Z"}))
    return file


def test_a_beating_holder_on_another_machine_is_respected(tmp_path: Path) -> None:
    file = elsewhere(tmp_path)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.1):
            os.utime(file)

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(LeaseTaken, match="process 7 on elsewhere"), lease(tmp_path):
            pass
    finally:
        ended.set()
        heart.join()
    assert json.loads(file.read_text())["pid"] == 7


def test_a_silent_holder_on_another_machine_is_dead(tmp_path: Path) -> None:
    file = elsewhere(tmp_path)
    with lease(tmp_path):
        assert json.loads(file.read_text())["pid"] == os.getpid()


def test_a_lease_beats_while_it_is_held_and_is_free_at_once_afterwards(tmp_path: Path) -> None:
    with lease(tmp_path):
        before = (tmp_path / LEASE).stat().st_mtime_ns
        time.sleep(0.5)
        assert (tmp_path / LEASE).stat().st_mtime_ns > before
    assert (tmp_path / LEASE).read_text() == ""
