"""Progress of a stage that streams documents: at most one event a second."""

import time
from typing import Any

from pamp_pipelines.lake.events import OnEvent, event

_INTERVAL_S = 1.0


class Progress:
    """Reports counters and their rates.

    Args:
        on_event: receives ``progress`` events; an exception that it raises cancels the stage.
        stage: name of the stage, in every event.
        total: expected final value of the counter ``documents``, when known.
    """

    def __init__(self, on_event: OnEvent, stage: str, total: int | None = None) -> None:
        self._on_event = on_event
        self._stage = stage
        self._total = total
        self._started = self._reported = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def update(self, *, documents: int, megabytes: float, **counters: Any) -> None:
        """Report now if the last report is at least a second old.

        Args:
            documents: documents read so far.
            megabytes: text read so far, in 10^6 bytes (or characters, where a stage counts those).
            counters: further running counts; integers get a ``…_per_second`` beside them.
        """
        now = time.monotonic()
        if now - self._reported < _INTERVAL_S:
            return
        self._reported = now
        counts = {"documents": documents, "megabytes": round(megabytes, 3), **counters}
        rates = {f"{k}_per_second": round(v / self.seconds, 1) for k, v in counts.items() if not isinstance(v, str)}
        fraction = {"fraction": min(1.0, documents / self._total)} if self._total else {}
        self._on_event(event("progress", stage=self._stage, **counts, **rates, **fraction))
