import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest

from pamp_pipelines.orchestration.leftovers import PROCESS_TAG, end_leftovers, process_tags


def start_run(instance: dg.DagsterInstance, tags: dict[str, str]) -> str:
    """A run that is STARTED and holds a slot of the pool `train`."""
    run_id = str(uuid.uuid4())
    own = {name: value.replace("RUN", run_id) for name, value in tags.items()}
    job = dg.JobDefinition(graph_def=dg.GraphDefinition("g"), name="job")
    run = instance.create_run_for_job(job, run_id=run_id, tags=own)
    instance.handle_run_event(run.run_id, dg.DagsterEvent("PIPELINE_START", "job"))
    return run.run_id


def dead_process_tags() -> dict[str, str]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = psutil.Process(process.pid).create_time()
        process.kill()
    return {PROCESS_TAG: f"{socket.gethostname()} {process.pid} {started:.2f} RUN"}


def foreign_tags() -> dict[str, str]:
    return {PROCESS_TAG: dead_process_tags()[PROCESS_TAG].replace(socket.gethostname(), "elsewhere")}


def test_the_run_of_a_killed_process_fails_and_frees_its_slot(instance: dg.DagsterInstance) -> None:
    storage = instance.event_log_storage
    run = start_run(instance, dead_process_tags())
    instance.event_log_storage.set_concurrency_slots("train", 1)
    assert storage.claim_concurrency_slot("train", run, "step").is_claimed
    assert end_leftovers(instance) == [run]
    assert instance.get_run_by_id(run).status is dg.DagsterRunStatus.FAILURE  # type: ignore[union-attr]
    assert storage.get_concurrency_info("train").active_slot_count == 0


def tags_of_another_run() -> dict[str, str]:
    """What a run that is executed again from the UI inherits from the run that was killed."""
    return {PROCESS_TAG: dead_process_tags()[PROCESS_TAG].replace("RUN", "the-first-run")}


@pytest.mark.parametrize("tags", [process_tags("RUN"), {}, foreign_tags(), tags_of_another_run()])
def test_living_and_foreign_runs_are_left_alone(instance: dg.DagsterInstance, tags: dict[str, str]) -> None:
    run = start_run(instance, tags)
    assert end_leftovers(instance) == []
    assert instance.get_run_by_id(run).status is dg.DagsterRunStatus.STARTED  # type: ignore[union-attr]


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance in memory has no pools."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def test_the_slot_of_a_run_that_never_came_to_be_is_freed(on_disk: dg.DagsterInstance) -> None:
    storage = on_disk.event_log_storage
    storage.set_concurrency_slots("train", 1)
    assert storage.claim_concurrency_slot("train", str(uuid.uuid4()), "step").is_claimed
    assert not storage.claim_concurrency_slot("train", str(uuid.uuid4()), "step").is_claimed  # waits in the line
    living = start_run(on_disk, process_tags("RUN"))
    assert not storage.claim_concurrency_slot("train", living, "step").is_claimed
    assert end_leftovers(on_disk) == []
    assert storage.claim_concurrency_slot("train", living, "step").is_claimed
    end_leftovers(on_disk)
    assert storage.get_concurrency_info("train").active_run_ids == {living}


def test_an_ended_run_keeps_its_slot_as_long_as_its_process_lives(on_disk: dg.DagsterInstance) -> None:
    storage = on_disk.event_log_storage
    storage.set_concurrency_slots("train", 2)
    living, dead = start_run(on_disk, process_tags("RUN")), start_run(on_disk, dead_process_tags())
    for run in (living, dead):
        assert storage.claim_concurrency_slot("train", run, "step").is_claimed
        on_disk.handle_run_event(run, dg.DagsterEvent("PIPELINE_CANCELED", "job"))
    assert end_leftovers(on_disk) == []
    assert storage.get_concurrency_info("train").active_run_ids == {living}
