"""Fake workers: tiny modules on a path of their own, and a way to see whether anything of a run is alive."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

import pamp_pipelines
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.launchers.base import HANDLE, RUN_TOKEN

# Starts two children as badly behaved as a rank can be: sessions of their own, deaf to SIGINT and SIGTERM.
STUBBORN = """
    import os, subprocess, sys
    CHILD = "import stubborn, time; stubborn.go_deaf(); print('deaf', flush=True); time.sleep(300)"
    def start_children():
        children = [
            subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=bool(i))
            for i in range(2)
        ]
        for child in children:
            child.stdout.readline()
        return children
    def go_deaf():
        import signal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
"""


def living(token: str) -> list[int]:
    """Processes that carry the token; zombies are dead."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


@dataclass
class Bench:
    """A folder for fake workers and their runs."""

    root: Path
    parents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def job(self) -> Path:
        return self.root / "job.json"

    def write(self, name: str, body: str) -> str:
        (self.root / "modules" / f"{name}.py").write_text(textwrap.dedent(body))
        return name

    def token(self) -> str:
        return str(json.loads((self.run_dir / HANDLE).read_text())["token"])

    def handle_pid(self) -> int:
        return int(json.loads((self.run_dir / HANDLE).read_text())["id"])

    def started(self, processes: int = 1) -> bool:
        events = self.run_dir / "events.jsonl"
        return events.exists() and events.read_text().count('"started"') >= processes

    def assert_all_dead(self, seconds: float = 10) -> None:
        wait_for(lambda: not living(self.token()), seconds, "end of all processes of the run")

    def parent(
        self, module: str, *, nproc: int | None = None, prelude: str = "", grace_s: float = 1.0, options: str = ""
    ) -> subprocess.Popen:
        """Another process that runs the worker and can be killed."""
        script = f"""
from pathlib import Path
import signal
# a shell that starts the tests in the background has them, and all that they start, ignore SIGINT
signal.signal(signal.SIGINT, signal.default_int_handler)
{prelude}
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.launchers import run_worker
profile = ComputeProfile(grace_s={grace_s}, threads_per_process=1)
run_worker({module!r}, Path({str(self.job)!r}), Path({str(self.run_dir)!r}), nproc={nproc}, profile=profile, {options})
"""
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, start_new_session=True)
        self.parents.append(process)
        return process


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    (tmp_path / "modules").mkdir()
    # the package under test, also where another one is installed
    package = Path(pamp_pipelines.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path / "modules", package))))
    (tmp_path / "job.json").write_text('{"answer": 42}')
    bench = Bench(tmp_path)
    bench.write("stubborn", STUBBORN)
    yield bench
    for parent in bench.parents:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
    if (bench.run_dir / HANDLE).exists():
        for pid in living(bench.token()):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def quick() -> ComputeProfile:
    """One second of grace."""
    return ComputeProfile(grace_s=1.0, threads_per_process=1)
