"""`kill -9` of each process of a shared instance while a real training runs: ``python benchmarks/kill_matrix.py``.

The instance is a team's: a PostgreSQL of its own, and webserver, daemon and code server as processes of their own, as
under systemd. A tiny model trains on a CPU, one training for all cases. Prints a row for each case, with the seconds
until the UI was true (for a worker that was killed: until another one had saved), and exits with 1 at the first that
does not hold: no process of the training left behind, no checkpoint lost, the state in the UI true within 60 s of
recovery, the training resumed.

The seconds between two attempts (`orchestration/retries.py`) and between two looks of sensors are shortened.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from dagster import DagsterRunStatus, RunsFilter

sys.path.insert(0, str(Path(__file__).parent.parent))

from pamp_pipelines.lake.store import Lake
from pamp_pipelines.launchers.base import RUN_TOKEN, read_handle
from pamp_pipelines.orchestration.instance import ensure_home, open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.project import Project
from pamp_pipelines.training.kept import read_intact
from tests.conftest import make_tiny_project
from tests.e2e.conftest import RUN, TOKEN, DagsterDev
from tests.postgres_server import PostgresServer

TRUE_S, DEAD_S, START_S = 60.0, 10.0, 240.0
MODEL, CORPUS, TRAINING = "scratch", "sonnets", "pretrained_checkpoint"
PARTITION = f"{MODEL}|long"
PREPARED = {"raw_corpus": CORPUS, "tokenized_shards": f"{CORPUS}|{MODEL}", "megatron_checkpoint": MODEL}

LONG = """
description: Trains until somebody ends it, and keeps an early checkpoint.
models: [scratch]
corpora: {sonnets: 1}
sequence_length: 64
iterations: 200000
global_batch_size: 2
optimizer: {lr: 1e-3}
precision: fp32
checkpoint: {interval: 100}
validation: {interval: 200000}
evaluation: {steps: [4], final: false}
log_interval: 50
"""

DEFINITIONS = """
import dataclasses

from pamp_pipelines.orchestration import retries
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.project import Project

retries.RETRIES = tuple(dataclasses.replace(line, delay_s=1) for line in retries.RETRIES)
defs = build_definitions(Project.discover(), interval_s=5)
"""


class Team(DagsterDev):
    """Three processes of a shared instance, each of which can be killed and started again."""

    def __init__(self, project: Project) -> None:
        self.project, self.token = project, secrets.token_hex(8)
        self.port, code_port = _free_ports(2)
        self.log = project.root / "team.log"
        (project.root / "team.py").write_text(DEFINITIONS)
        workspace = project.root / "team.yaml"
        workspace.write_text(
            f"load_from: [{{grpc_server: {{host: 127.0.0.1, port: {code_port}, location_name: pamp}}}}]"
        )
        dagster = [sys.executable, "-W", "ignore", "-m", "dagster"]
        script = Path(sys.executable).parent
        self._commands = {
            "code server": [
                *(*dagster, "api", "grpc", "-f", str(project.root / "team.py")),
                *("-p", str(code_port), "-h", "127.0.0.1", "--location-name", "pamp"),
            ],
            "webserver": [str(script / "dagster-webserver"), "-w", str(workspace), "-p", str(self.port)],
            "daemon": [str(script / "dagster-daemon"), "run", "-w", str(workspace)],
        }
        self._environment = {
            **os.environ,
            "DAGSTER_HOME": str(ensure_home(project)),
            "PAMP_PROJECT": str(project.root),
            "PAMP_LAKE": str(project.lake),
            "OMP_NUM_THREADS": "1",
            TOKEN: self.token,
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for name in self._commands:
            self.start(name)

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        """What the base class watches while it waits for the UI."""
        return self._running["webserver"]

    def start(self, name: str) -> None:
        with self.log.open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        if name == "webserver":
            self._wait_until_ready()

    def status(self, run_id: str) -> str:
        return str(self.query(RUN, id=run_id)["runOrError"]["status"])

    def until(self, condition: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        """Wait until ``condition`` holds; ``what`` is the message when it never does."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.2)

    def kill_one(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def stop(self) -> list[psutil.Process]:
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + 60
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in self._running.values():
                process.poll()
            time.sleep(0.2)
        for process in left:
            process.kill()
        return left


def _free_ports(count: int) -> list[int]:
    listeners = [socket.socket() for _ in range(count)]
    for listener in listeners:
        listener.bind(("127.0.0.1", 0))
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class Matrix:
    """One training, and what is seen of it after each kill."""

    def __init__(self, team: Team, project: Project) -> None:
        self.team, self.lake = team, Lake(project.lake)
        self.version = self.lake.version_dir(MODEL, "long", 1)
        self.project = project
        self.run = team.launch([TRAINING], PARTITION)
        self.moves_on("start")

    def step(self) -> int:
        try:
            return int((self.version / "checkpoints/latest_checkpointed_iteration.txt").read_text())
        except (OSError, ValueError):
            return 0

    def worker_token(self) -> str:
        handle = read_handle(self.version)
        assert handle is not None
        return handle.token

    def moves_on(self, what: str, within_s: float = START_S) -> None:
        """Two more saves: the first may have been under way."""
        for _ in range(2):
            self._saves_again(self.step(), what, within_s)

    def _saves_again(self, reached: int, what: str, within_s: float) -> None:
        self.team.until(lambda: self.step() > reached, f"{what}: the training does not move on", within_s)

    def is_shown(self, status: str, what: str) -> None:
        """The UI shows this status of the run within a minute; its first queries may meet dead connections."""

        def shown() -> bool:
            with contextlib.suppress(AssertionError, OSError):
                return self.team.status(self.run) == status
            return False

        self.team.until(shown, f"{what}: the UI does not show {status}", TRUE_S)

    def seen(self, what: str, since: float, outcome: str) -> None:
        print(f"| {what} | {outcome} | {time.monotonic() - since:.1f} |", flush=True)

    def goes_on(self, what: str, recover: Callable[[], None]) -> None:
        """The same worker trains on, in the same run, which the UI shows as started."""
        token = self.worker_token()
        recover()
        since = time.monotonic()
        self.is_shown("STARTED", what)
        self.seen(what, since, "trains on in the same run")
        self.moves_on(what)
        assert self.worker_token() == token, what
        self.is_shown("STARTED", what)

    def resumes(self, what: str, token: str, within_s: float = START_S) -> None:
        """No process of the worker before is left, and another one goes on from its checkpoint in the same version."""
        reached = self.step()
        self.team.until(lambda: not _alive(token), f"{what}: processes of the worker are alive", DEAD_S)
        self.team.until(lambda: self.worker_token() != token, f"{what}: no new worker", within_s)
        assert self.step() >= reached
        self.moves_on(what)
        assert self.lake.versions(MODEL, "long") == [1]


def _alive(token: str) -> bool:
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except psutil.Error:
            continue
    return False


@contextlib.contextmanager
def shared_instance(root: Path, postgres: PostgresServer) -> Iterator[Team]:
    """The tiny project with everything that a training needs, on a team's instance."""
    os.environ.update({"PAMP_INSTANCE": "team", "HF_HUB_OFFLINE": "1", **postgres.environment})
    for name in ("DAGSTER_HOME", "PAMP_PROJECT"):
        os.environ.pop(name, None)
    project = make_tiny_project(root)
    os.environ["PAMP_LAKE"] = str(project.data / "lake")
    (project.assets / "training_configs/long.yaml").write_text(LONG)
    settings = ensure_home(project) / "dagster.yaml"
    text = settings.read_text()
    for slow, quick in (
        ("poll_interval_seconds: 30", "poll_interval_seconds: 2"),
        ("end_seconds: 60", "end_seconds: 1"),
    ):
        assert slow in text
        text = text.replace(slow, quick)
    settings.write_text(text)
    for asset, partition in PREPARED.items():
        materialize(project, asset, partition)
    team = Team(project)
    try:
        yield team
    finally:
        left = team.stop()
    assert left == []


def run(team: Team, postgres: PostgresServer) -> None:
    project = team.project
    matrix = Matrix(team, project)

    def restart(name: str) -> None:
        team.kill_one(name)
        team.start(name)

    matrix.goes_on("webserver", lambda: restart("webserver"))

    matrix.goes_on("daemon", lambda: restart("daemon"))
    assert team.wait(team.launch(["raw_corpus"], CORPUS))["status"] == "SUCCESS"

    def lose_the_database() -> None:
        postgres.kill()
        matrix.moves_on("Postgres down")
        postgres.start()

    matrix.goes_on("Postgres", lose_the_database)

    # the run's process lives on without the code server that started it
    matrix.goes_on("code server", lambda: restart("code server"))

    token, since = matrix.worker_token(), time.monotonic()
    handle = read_handle(matrix.version)
    assert handle is not None
    supervisor = psutil.Process(int(handle.id))
    run_worker = supervisor.parent()
    assert run_worker is not None
    supervisor.kill()
    matrix.resumes("launcher process", token)
    matrix.seen("launcher process", since, "tried again in the same run")
    matrix.is_shown("STARTED", "launcher process")

    token, since = matrix.worker_token(), time.monotonic()
    run_worker.kill()
    matrix.is_shown("FAILURE", "run worker")
    matrix.seen("run worker", since, "run failed; the daemon starts it again")
    matrix.resumes("run worker", token)
    with open_instance(project) as instance:
        started = RunsFilter(statuses=[DagsterRunStatus.STARTED])
        (again,) = [run for run in instance.get_runs(started) if run.parent_run_id == matrix.run]
    matrix.run = again.run_id

    # a run whose code server is gone hears of no "Terminate"; a forced one stops it all the same
    restart("code server")
    team.until(lambda: _ready(team), "the code server does not start", START_S)
    token, since = matrix.worker_token(), time.monotonic()
    team.terminate(matrix.run, force=True)
    team.until(lambda: not _alive(token), "a forced end leaves the training alive", TRUE_S)
    matrix.seen("code server, then a forced end", since, "canceled, no process left")
    matrix.is_shown("CANCELED", "forced end")
    for key in matrix.lake.kept_checkpoints():
        read_intact(matrix.lake, key)


def _ready(team: Team) -> bool:
    try:
        return bool(team.partitions("raw_corpus"))
    except (AssertionError, OSError, KeyError):
        return False


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        postgres = PostgresServer()
        try:
            with shared_instance(Path(temporary) / "project", postgres) as team:
                run(team, postgres)
        finally:
            postgres.stop()


if __name__ == "__main__":
    main()
