"""Events of a stage as progress on stderr: a live line on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pamp_pipelines.lake.events import Event, OnEvent

_PLAIN_INTERVAL_S = 5.0
_PASSING = ("progress", "metric")
_FIRST = ("asset", "partition", "stage", "run", "iteration", "iterations", "loss", "lr")
_MOST = 9
_BAR = 20
_HIDDEN = {"policy", "validation", "consumed_samples", "content", "tokenizer_sha256"}


@contextmanager
def progress() -> Iterator[OnEvent]:
    """An ``on_event`` that shows what happens until the block ends; what is fetched for a remote lake too."""
    from pamp_pipelines.lake.staging import listening

    if not sys.stderr.isatty():
        with listening(plain := _Plain()):
            try:
                yield plain
            finally:
                plain.flush()
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    with console.status("") as status:

        def show(event: Event) -> None:
            if event.kind in _PASSING:
                status.update(Text(describe(event), no_wrap=True, overflow="ellipsis"))
            else:
                console.print(describe(event), markup=False, style="yellow" if event.kind == "warning" else None)

        with listening(show):
            yield show


class _Plain:
    """Passing events at most every few seconds, the others always, and the last of the passing ones before them."""

    def __init__(self) -> None:
        self._shown = float("-inf")
        self._held: Event | None = None

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if event.kind in _PASSING:
            if now - self._shown < _PLAIN_INTERVAL_S and not _is_last(event.data):
                self._held = event
                return
            self._shown, self._held = now, None
        elif event.kind != "warning":
            self.flush()
        click.echo(describe(event), err=True)

    def flush(self) -> None:
        """Show what was held back, when nothing may follow it: else a log would end in the middle of what was done."""
        if self._held is not None:
            click.echo(describe(self._held), err=True)
        self._held = None


def _is_last(data: Mapping[str, Any]) -> bool:
    """Whether an event says that something is done, in a way that all of its kind do."""
    counts = ("done_bytes", "total_bytes"), ("done", "all")
    return data.get("done") is True or any(a in data and data[a] == data.get(b) for a, b in counts)


def describe(event: Event) -> str:
    """One line: time, kind and the event's plain values, the telling ones first."""
    data = {
        key: value
        for key, value in event.data.items()
        if key not in _HIDDEN and value is not None and not isinstance(value, Mapping)
    }
    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    if event.kind == "warning" and "message" in data:
        return f"{clock} warning: {data['message']}"
    bar = _bar(data)
    ordered = [*(key for key in _FIRST if key in data), *(key for key in data if key not in _FIRST)]
    return f"{clock} {event.kind:<10} {bar}" + "  ".join(f"{key}={_value(data[key])}" for key in ordered[:_MOST])


def _bar(data: dict[str, Any]) -> str:
    """How far a conversion is, taken out of the event's data: a bar, bytes, speed, time left. Else empty."""
    if not {"done_bytes", "total_bytes"} <= data.keys():
        return ""
    done, total = int(data.pop("done_bytes")), int(data.pop("total_bytes"))
    share = done / total if total else 1.0
    bar = f"[{'#' * int(share * _BAR):.<{_BAR}}] {share:4.0%}"
    parts = [f"{data.pop('stage', '')} {bar}  {done / 1e9:.2f} of {total / 1e9:.2f} GB"]
    if (speed := data.pop("gigabytes_per_second", None)) is not None:
        parts.append(f"{speed:.2f} GB/s")
    if (seconds := data.pop("seconds_left", None)) is not None:
        parts.append(f"{_left(seconds)} left")
    return "  ".join(parts) + "  "


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _value(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
