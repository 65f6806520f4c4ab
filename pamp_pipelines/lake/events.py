"""The durable event log of a worker: JSON lines, one writer, tailed by byte offset."""

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

EventKind = Literal[
    "submitted", "started", "construction", "progress", "metric", "checkpoint", "warning", "finished", "failed"
]


class Event(BaseModel):
    """One line of ``events.jsonl``; ``time`` is seconds since the epoch."""

    model_config = ConfigDict(frozen=True)

    time: float
    kind: EventKind
    data: dict[str, Any] = {}


OnEvent = Callable[[Event], None]


def ignore(_: Event) -> None:
    """An ``on_event`` for callers that do not look."""


def event(kind: EventKind, **data: Any) -> Event:
    """An event that happened now."""
    return Event(time=time.time(), kind=kind, data=data)


class EventLog:
    """Appends events to a file.

    Each event is one ``write`` with O_APPEND, so a line is never interleaved and a tail never sees half of one that
    was not followed by the rest. A line left unfinished by a killed writer is closed before the next one.

    An event that a full disk has no room for is dropped: results are read from files of their own, and work that can go
    on shall not end for a line of its log.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._cut = False
        with path.open("a+b") as stream:
            if stream.tell() > 0:
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")

    def write(self, kind: EventKind, **data: Any) -> None:
        line = (event(kind, **data).model_dump_json() + "\n").encode()
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                # the last one may have been cut by a full disk
                whole = b"\n" + line if self._cut else line
                self._cut = os.write(fd, whole) < len(whole)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise


def read_events(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Whole lines after ``offset`` bytes, and the offset to go on from; damaged lines are skipped."""
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    events = []
    for line in data[:end].splitlines():
        try:
            events.append(Event.model_validate(json.loads(line)))
        except ValueError:
            continue
    return events, offset + end
