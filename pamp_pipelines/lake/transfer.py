"""Progress of bytes that are moved by several threads."""

import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from pamp_pipelines.lake.events import OnEvent, event

_INTERVAL_S = 1.0


class Transfer:
    """Counts bytes and tells of them now and then, from the thread that calls `tell`."""

    def __init__(self, on_event: OnEvent, what: str, name: str, total: int) -> None:
        self._on_event, self._what, self._name, self.total = on_event, what, name, total
        self.moved = 0
        self._lock = threading.Lock()
        self._start = self._told = time.monotonic()

    def add(self, count: int) -> None:
        """From any thread."""
        with self._lock:
            self.moved += count

    def tell(self) -> None:
        """At most once a second."""
        now = time.monotonic()
        if now - self._told >= _INTERVAL_S:
            self._told = now
            self._on_event(event("progress", **self._facts(now)))

    def wait(self, job: Future[Any]) -> None:
        """Tell of what other threads move until a job is done."""
        while not wait([job], timeout=_INTERVAL_S).done:
            self.tell()

    def end(self) -> None:
        """The last word, also on a transfer that took no second."""
        self._on_event(event("progress", **self._facts(time.monotonic()), done=True))

    def _facts(self, now: float) -> dict[str, object]:
        rate = self.moved / max(now - self._start, 1e-6)
        return {
            "stage": self._what,
            "artifact": self._name,
            "megabytes": round(self.moved / 1e6, 3),
            "of_megabytes": round(self.total / 1e6, 3),
            "megabytes_per_second": round(rate / 1e6, 3),
        }
