"""Runs of this process wait for a slot of their pool: they say so, and Ctrl-C ends the wait."""

import signal
from collections.abc import Iterator

import dagster as dg
import pytest

from pamp_pipelines.lake.events import Event
from pamp_pipelines.orchestration import pools
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.orchestration.pools import holding_slot
from pamp_pipelines.project import Project


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "POLL_S", 0.05)


def active(instance: dg.DagsterInstance, pool: str = "train") -> set[str]:
    return {slot.run_id for slot in instance.event_log_storage.get_concurrency_info(pool).claimed_slots}


@pytest.fixture
def instance(own_project: Project) -> Iterator[dg.DagsterInstance]:
    """An instance on disk: one in memory has no pools."""
    with open_instance(own_project) as instance:
        yield instance


def test_the_slot_is_given_back_and_others_are_named(instance: dg.DagsterInstance) -> None:
    heard: list[str] = []

    def hear(event: Event) -> None:
        heard.append(event.data["message"])
        instance.event_log_storage.free_concurrency_slots_for_run("first")

    with holding_slot(instance, "train", "first", "step"):
        assert active(instance) == {"first"}  # of the default limit
        with holding_slot(instance, "train", "second", "step", hear):
            assert active(instance) == {"second"}
    assert active(instance) == set()
    assert heard == ["Waiting for a slot of the pool train, held by first."]
    with holding_slot(instance, None, "third", "step"):
        assert active(instance) == set()


def test_ctrl_c_ends_the_wait_of_a_command(own_project: Project, instance: dg.DagsterInstance) -> None:
    """Dagster's own executor waits at full speed, deaf, and without a word."""

    def interrupt(event: Event) -> None:
        if event.kind == "warning":
            assert event.data["message"] == "Waiting for a slot of the pool train, held by another."
            signal.raise_signal(signal.SIGINT)

    with holding_slot(instance, "train", "another", "step"):
        with pytest.raises(KeyboardInterrupt):
            materialize(own_project, "pretrained_checkpoint", "scratch|sonnets-only", on_event=interrupt)
        assert active(instance) == {"another"}
        (assigned,) = instance.event_log_storage.get_concurrency_info("train").pending_steps
        assert assigned.run_id == "another"
        assert instance.get_runs() == []
