"""What is shown of events where there is no terminal."""

import re

import pytest

from pamp_pipelines.commands.progress import progress
from pamp_pipelines.lake.events import event


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines without their clock."""
    return [re.sub(" +", " ", line.partition(" ")[2]) for line in capsys.readouterr().err.splitlines()]


def test_the_end_of_a_conversion_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as on_event:
        for done in range(15, 101, 5):
            on_event(event("progress", stage="import", done_bytes=done, total_bytes=100))
        on_event(event("finished", artifact="x"))
    first, last, finished = told(capsys)
    assert " 15% " in first
    assert " 100% " in last
    assert finished.startswith("finished")


def test_of_what_does_not_say_when_it_is_done_the_last_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as on_event:
        for iteration in range(1, 6):
            on_event(event("metric", iteration=iteration))
        on_event(event("warning", message="slow"))
        on_event(event("checkpoint", iteration=5))
        on_event(event("metric", iteration=6))
        on_event(event("metric", iteration=7))
    assert told(capsys) == [
        "metric iteration=1",
        "warning: slow",
        "metric iteration=5",
        "checkpoint iteration=5",
        "metric iteration=7",
    ]


def test_what_was_done_before_an_error_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress() as on_event:  # noqa: PT012
        on_event(event("metric", iteration=1))
        on_event(event("metric", iteration=2))
        raise KeyboardInterrupt
    assert told(capsys) == ["metric iteration=1", "metric iteration=2"]
