"""Progress of a conversion as events: bytes moved, speed, time left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from pamp_pipelines.lake.events import EventKind, OnEvent, event

_INTERVAL_S = 0.5


class Events(Protocol):
    """Where events go: a worker's log, or whoever listens to several."""

    def write(self, kind: EventKind, **data: Any) -> None: ...


@dataclass(frozen=True)
class Told:
    """Events of this process, for whoever listens to it."""

    on_event: OnEvent

    def write(self, kind: EventKind, **data: Any) -> None:
        self.on_event(event(kind, **data))


@dataclass
class Progress:
    """Counts bytes and writes a `progress` event at most every half second, and one at the end."""

    events: Events
    stage: str
    total_bytes: int
    done_bytes: int = 0
    _started: float = field(default_factory=time.monotonic)
    _written: float = 0.0

    def __call__(self, count: int) -> None:
        self.done_bytes += count
        now = time.monotonic()
        if now - self._written >= _INTERVAL_S or self.done_bytes >= self.total_bytes:
            self._written = now
            self.events.write(
                "progress",
                stage=self.stage,
                done_bytes=self.done_bytes,
                total_bytes=self.total_bytes,
                gigabytes_per_second=round(self.gigabytes_per_second, 3),
                seconds_left=round(self.seconds_left, 1),
            )

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-6)

    @property
    def gigabytes_per_second(self) -> float:
        """Mean speed so far, in 10^9 bytes per second."""
        return self.done_bytes / 1e9 / self.seconds

    @property
    def seconds_left(self) -> float:
        return self.seconds / max(self.done_bytes, 1) * (self.total_bytes - self.done_bytes)
