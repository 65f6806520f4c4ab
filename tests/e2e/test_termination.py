"""However a training ends, nothing of it stays alive, it is not retried by mistake, and the next queued run starts.

One `dagster dev` with one slot in the pool: each case is launched while the one before it still runs, so that it can
only start when that one has given its slot back. That Dagster itself is killed is in test_dagster_dev.py.
"""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from pamp_pipelines.launchers.base import Handle
from pamp_pipelines.orchestration.instance import ensure_home, open_instance
from pamp_pipelines.orchestration.leftovers import PROCESS_TAG, process_tags
from pamp_pipelines.project import Project

HERE = Path(__file__).parent / "termination"
ASSET = ["pretrained_checkpoint"]
DEAD_S, HEARD_S, START_S = 10.0, 60.0, 240.0

WORKSPACE = """
load_from:
  - python_file: {relative_path: %s, location_name: pamp}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("STUB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    (tmp_path / "workspace.yaml").write_text(WORKSPACE % (HERE / "definitions.py"))
    found = Project(tmp_path)
    settings = ensure_home(found) / "dagster.yaml"
    text = settings.read_text()
    for slow, quick in (
        ("poll_interval_seconds: 30", "poll_interval_seconds: 2"),
        ("end_seconds: 60", "end_seconds: 1"),
    ):
        assert slow in text
        text = text.replace(slow, quick)
    settings.write_text(text)
    return found


class Cases:
    def __init__(self, dev: Any, runs: Path) -> None:
        self.dev, self.runs = dev, runs

    def attempts(self, behaviour: str) -> int:
        file = self.runs / behaviour / "attempts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def works(self, behaviour: str) -> Handle:
        """Wait until the worker of a case is at work; nothing else is then."""
        _until(
            lambda: self.attempts(behaviour) > 0,
            START_S,
            f"{behaviour} does not start\n{self.dev.log.read_text()[-2000:]}",
        )
        handle = Handle.model_validate_json((self.runs / behaviour / "handle.json").read_bytes())
        assert {p.environ()["PAMP_RUN_TOKEN"] for p in self.dev.workers()} == {handle.token}
        return handle

    def is_dead(self, handle: Handle) -> None:
        def alive() -> bool:
            return handle.token in {_token(process) for process in self.dev.workers()}

        _until(lambda: not alive(), DEAD_S, f"processes of {handle.log_dir} are alive")

    def ended(self, run_id: str, status: str) -> None:
        run = self.dev.wait(run_id)
        assert run["status"] == status, run["eventConnection"]["events"]

    def waits_for_a_slot(self, behaviour: str) -> tuple[str, psutil.Process]:
        """A run that has left the queue, and whose slot was then taken by one of this process; with its process."""
        run_id = self.dev.launch(ASSET, behaviour)
        _until(lambda: self.dev.status(run_id) == "STARTING", START_S, f"{behaviour} does not leave the queue")
        with open_instance(self.dev.project) as instance:
            holder = str(uuid.uuid4())
            job = dg.JobDefinition(graph_def=dg.GraphDefinition("g"), name="job")
            instance.create_run_for_job(job, run_id=holder, tags=process_tags(holder))
            assert instance.event_log_storage.claim_concurrency_slot("train", holder, "step").is_claimed
            said = f"Waiting for a slot of the pool train, held by {holder[:8]}."
            _until(lambda: said in self.dev.messages(run_id), START_S, f"{behaviour} does not wait")
            waiting = instance.get_run_by_id(run_id)
            assert waiting is not None
            self.holder = holder
        return run_id, psutil.Process(int(waiting.tags[PROCESS_TAG].split()[1]))

    def free(self) -> None:
        with open_instance(self.dev.project) as instance:
            instance.event_log_storage.free_concurrency_slots_for_run(self.holder)


@pytest.fixture
def cases(project: Project, dagster_dev_of: Callable[[Project], Any]) -> Cases:
    return Cases(dagster_dev_of(project), project.root / "runs")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_way_to_end_a_training(cases: Cases) -> None:
    dev = cases.dev
    obedient = dev.launch(ASSET, "obedient")
    handle = cases.works("obedient")

    # "Terminate", while the next one waits for the slot
    stubborn = dev.launch(ASSET, "stubborn")
    dev.terminate(obedient)
    cases.is_dead(handle)
    cases.ended(obedient, "CANCELED")

    # "Terminate" of a worker that is deaf to it
    handle = cases.works("stubborn")
    dies = dev.launch(ASSET, "dies")
    dev.terminate(stubborn)
    cases.is_dead(handle)
    cases.ended(stubborn, "CANCELED")

    # a worker that is killed, as when memory runs out: the one case that is worth a retry
    cases.ended(dies, "FAILURE")
    assert cases.attempts("dies") == 3
    assert dev.workers() == []

    # the run's own process is killed: its supervisor ends the worker, run monitoring the run
    orphaned = dev.launch(ASSET, "orphaned")
    handle = cases.works("orphaned")
    slow = dev.launch(ASSET, "slow")
    psutil.Process(int(handle.id)).parent().kill()  # type: ignore[union-attr]
    cases.is_dead(handle)
    cases.ended(orphaned, "FAILURE")

    # a run over its maximum runtime
    handle = cases.works("slow")
    with open_instance(dev.project) as instance:  # only now: on a loaded machine a run needs longer than this to start
        instance.add_run_tags(slow, {"dagster/max_runtime": "1"})
    forced = dev.launch(ASSET, "forced")
    cases.ended(slow, "FAILURE")
    cases.is_dead(handle)

    # "Force termination"
    handle = cases.works("forced")
    waits = dev.launch(ASSET, "waits")
    dev.terminate(forced, force=True)
    cases.is_dead(handle)
    cases.ended(forced, "CANCELED")

    # "Terminate" while the next attempt is waited for, which would be in ten minutes
    _until(lambda: any("next attempt" in said for said in dev.messages(waits)), START_S, "no attempt is announced")
    quick = dev.launch(ASSET, "quick")
    dev.terminate(waits)
    _until(lambda: dev.status(waits) == "CANCELED", HEARD_S, "the run waits on")

    cases.ended(quick, "SUCCESS")
    tried = {
        behaviour: cases.attempts(behaviour) for behaviour in ("obedient", "stubborn", "orphaned", "slow", "forced")
    }
    assert set(tried.values()) == {1}, tried

    # while a slot is waited for that another run was quicker to take
    for force in (False, True):
        run_id, process = cases.waits_for_a_slot("quick")
        dev.terminate(run_id, force=force)
        process.wait(HEARD_S)
        cases.ended(run_id, "CANCELED")
        cases.free()


def _token(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("PAMP_RUN_TOKEN")
    except psutil.Error:
        return None


def _until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
