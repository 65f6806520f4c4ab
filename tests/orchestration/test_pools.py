"""A run waits for a slot of its pool at rest: it says so, hears of its end, and leaves the line."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import dagster as dg
import psutil
import pytest

from pamp_pipelines.lake.events import Event
from pamp_pipelines.orchestration import pools
from pamp_pipelines.orchestration.events import listener
from pamp_pipelines.orchestration.executor import execute_here, waiting_executor
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.leftovers import PROCESS_TAG, process_tags
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.project import Project

JOB = dg.JobDefinition(graph_def=dg.GraphDefinition("g"), name="job")
LONG_S = 120.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "POLL_S", 0.05)


@pytest.fixture
def instance(own_project: Project) -> Iterator[dg.DagsterInstance]:
    """An instance on disk: one in memory has no pools."""
    with open_instance(own_project) as instance:
        yield instance


@pytest.fixture
def holder(instance: dg.DagsterInstance) -> str:
    """A run of this process, which is alive, with the only slot of the pool."""
    run_id = str(uuid.uuid4())
    instance.create_run_for_job(JOB, run_id=run_id, tags=process_tags(run_id))
    instance.event_log_storage.set_concurrency_slots("train", 1)
    assert instance.event_log_storage.claim_concurrency_slot("train", run_id, "step").is_claimed
    return run_id


def in_line(instance: dg.DagsterInstance) -> set[str]:
    return {step.run_id for step in instance.event_log_storage.get_concurrency_info("train").pending_steps}


def hearing(message: Callable[[str], None]) -> Callable[[Event], None]:
    return lambda event: message(event.data["message"]) if event.kind == "warning" else None


def test_ctrl_c_ends_the_wait_of_a_command(own_project: Project, instance: dg.DagsterInstance, holder: str) -> None:
    heard: list[str] = []

    def interrupt(message: str) -> None:
        heard.append(message)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        materialize(own_project, "pretrained_checkpoint", "scratch|sonnets-only", on_event=hearing(interrupt))
    assert heard == [f"Waiting for a slot of the pool train, held by {holder[:8]}."]
    assert in_line(instance) == {holder}
    (waited,) = [run for run in instance.get_runs() if run.run_id != holder]
    assert waited.is_finished
    assert PROCESS_TAG in waited.tags


@pytest.mark.parametrize("kind", ["PIPELINE_CANCELING", "PIPELINE_CANCELED"])
def test_a_run_that_was_ended_from_elsewhere_waits_no_more(
    own_project: Project, instance: dg.DagsterInstance, holder: str, kind: str
) -> None:
    def end(_: str) -> None:
        (waiting,) = in_line(instance) - {holder}
        instance.handle_run_event(waiting, dg.DagsterEvent(kind, "job"))

    with pytest.raises(KeyboardInterrupt):
        materialize(own_project, "pretrained_checkpoint", "scratch|sonnets-only", on_event=hearing(end))
    assert in_line(instance) == {holder}
    assert {run.status.value for run in instance.get_runs() if run.run_id != holder} == {"CANCELED"}


def test_a_pool_without_any_slot_is_told(own_project: Project, instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots("train", 0)
    heard: list[str] = []

    def interrupt(message: str) -> None:
        heard.append(message)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        materialize(own_project, "pretrained_checkpoint", "scratch|sonnets-only", on_event=hearing(interrupt))
    assert heard == ["Waiting for a slot of the pool train, held by no run: its limit is 0."]


def test_who_is_next_is_told_while_nobody_has_the_slot(instance: dg.DagsterInstance, holder: str) -> None:
    """Dagster assigns a freed slot to the next in the line, which may be at something else."""
    storage = instance.event_log_storage
    following, last = (str(uuid.uuid4()) for _ in range(2))
    for run_id in (following, last):
        instance.create_run_for_job(JOB, run_id=run_id, tags=process_tags(run_id))
    assert not storage.claim_concurrency_slot("train", following, "step").is_claimed
    storage.free_concurrency_slots_for_run(holder)
    run = instance.get_run_by_id(last)
    assert run is not None
    with pools.WaitingSlots(instance, run) as slots:
        assert slots._waits_for("train") == f"Waiting for a slot of the pool train, held by {following[:8]}."


def test_a_step_runs_when_the_slot_is_free_and_gives_it_back(instance: dg.DagsterInstance, holder: str) -> None:
    storage = instance.event_log_storage
    seen: list[set[str]] = []

    @dg.asset(pool="train")
    def step() -> None:
        seen.append(storage.get_concurrency_info("train").active_run_ids)

    job = dg.Definitions([step], executor=waiting_executor).resolve_implicit_global_asset_job_def()
    token = listener.set(hearing(lambda _: storage.free_concurrency_slots_for_run(holder)))
    try:
        result = execute_here(job, [dg.AssetKey("step")], None, instance, str(uuid.uuid4()), {})
    finally:
        listener.reset(token)
    assert result.success
    assert seen == [{result.run_id}]
    assert in_line(instance) == set()


@pytest.mark.slow
def test_a_launched_run_waits_at_rest_and_goes_at_sigterm(
    own_project: Project, instance: dg.DagsterInstance, holder: str
) -> None:
    """The process of a run from the UI, which has left the queue: deaf and busy with Dagster's own executor."""
    env = {**os.environ, "DAGSTER_HOME": str(own_project.dagster_home), "PAMP_PROJECT": str(own_project.root)}
    command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "pamp_pipelines.definitions", "-j", "train"]
    tags = ["--tags", '{"dagster/partition": "scratch|sonnets-only"}']
    with subprocess.Popen([*command, *tags], env=env, stderr=subprocess.DEVNULL, cwd=own_project.root) as process:
        deadline = time.monotonic() + LONG_S
        while not in_line(instance) - {holder}:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        used = sum(psutil.Process(process.pid).cpu_times()[:2])
        time.sleep(4)
        assert sum(psutil.Process(process.pid).cpu_times()[:2]) - used < 1.0
        (waiting,) = in_line(instance) - {holder}
        run = instance.get_run_by_id(waiting)
        assert run is not None
        assert PROCESS_TAG in run.tags
        process.send_signal(signal.SIGTERM)
        process.wait(LONG_S)
    assert in_line(instance) == {holder}
    assert {run.is_finished for run in instance.get_runs() if run.run_id != holder} == {True}
