"""A training's output is in the tabs of its run, and not in the event log."""

import errno
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pamp_pipelines.lake.events import Event
from pamp_pipelines.orchestration.compute_logs import following
from pamp_pipelines.orchestration.events import listener

RANKS = "start/rendezvous/attempt_0"


def write(logs: Path, file: str, text: str) -> None:
    (logs / file).parent.mkdir(parents=True, exist_ok=True)
    with (logs / file).open("a") as stream:
        stream.write(text)


def shown(tmp_path: Path) -> tuple[str, str, int]:
    """The two tabs of a run that wrote into ``logs``, and how many events it has."""
    logs = tmp_path / "logs"
    write(logs, f"earlier/{RANKS}/0/stdout.log", "of an earlier run\n")

    @dg.asset
    def trained() -> None:
        with following(logs):
            write(logs, f"earlier/{RANKS}/0/stdout.log", "and watched again\n")
            write(logs, "start/worker.log", "torchrun warns\n")
            write(logs, f"{RANKS}/0/stdout.log", "".join(f"iteration {n}\n" for n in range(100_000)))
            write(logs, f"{RANKS}/0/stderr.log", "a warning\n")
            write(logs, f"{RANKS}/1/stdout.log", "of the second rank\n")
            write(logs, f"start/node1/{RANKS}/0/stdout.log", "of the second node\n")

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = dg.materialize([trained], instance=instance).run_id
        tabs = instance.compute_log_manager.get_log_data([run, "compute_logs", log_key(instance, run)])
        count = len(instance.all_logs(run))
    return (tabs.stdout or b"").decode(), (tabs.stderr or b"").decode(), count


def log_key(instance: dg.DagsterInstance, run: str) -> str:
    (captured,) = instance.all_logs(run, of_type=dg.DagsterEventType.LOGS_CAPTURED)
    assert captured.dagster_event is not None
    return captured.dagster_event.logs_captured_data.file_key


def test_the_first_rank_is_in_the_tabs_and_its_lines_are_no_events(tmp_path: Path) -> None:
    stdout, stderr, events = shown(tmp_path)
    assert stdout.splitlines()[:2] == ["and watched again", "iteration 0"]
    assert len(stdout.splitlines()) == 100_001
    assert "torchrun warns\n" in stderr
    assert "a warning\n" in stderr
    assert events < 40


def test_the_command_line_shows_its_own_progress(tmp_path: Path) -> None:
    heard: list[Event] = []
    token = listener.set(heard.append)
    try:
        assert "iteration" not in shown(tmp_path)[0]
    finally:
        listener.reset(token)


def test_output_that_cannot_be_kept_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        @property
        def buffer(self) -> Any:
            return self

        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with following(tmp_path / "logs"):
        write(tmp_path / "logs", f"{RANKS}/0/stdout.log", "iteration 1\n")
        monkeypatch.setattr("sys.stdout", Full())
