"""The event log: one writer, any number of tails, kills in between."""

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pamp_pipelines.lake.events import Event, EventLog, read_events

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
payloads = st.lists(st.dictionaries(st.text(min_size=1), values, max_size=3), max_size=8)


@settings(max_examples=80, deadline=None)
@given(payloads=payloads, data=st.data())
def test_a_tail_sees_every_event_once_wherever_the_file_is_cut(tmp_path_factory, payloads, data):
    """A file system may show any part of what was written; the tail waits for the rest of a line."""
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    whole = "".join(
        Event(time=1.0, kind="metric", data={"payload": p}).model_dump_json() + "\n" for p in payloads
    ).encode()
    cuts = [*sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6))), len(whole)]
    seen, offset, start = [], 0, 0
    for cut in cuts:
        with path.open("ab") as stream:
            stream.write(whole[start:cut])
        start = cut
        events, offset = read_events(path, offset)
        seen += events
    assert [e.data["payload"] for e in seen] == payloads
    assert offset == len(whole)
    assert read_events(path, offset) == ([], offset)


@settings(max_examples=40, deadline=None)
@given(torn=st.binary(min_size=1, max_size=30).filter(lambda b: b"\n" not in b))
def test_a_line_torn_by_a_kill_costs_only_itself(tmp_path_factory, torn):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    EventLog(path).write("started", attempt=1)
    with path.open("ab") as stream:
        stream.write(torn)
    EventLog(path).write("started", attempt=2)
    events, _ = read_events(path)
    assert [e.data["attempt"] for e in events] == [1, 2]


def test_an_attempts_end_offset_is_where_the_next_begins(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("started", attempt=1)
    end = path.stat().st_size
    EventLog(path).write("started", attempt=2)
    events, _ = read_events(path, end)
    assert [e.data["attempt"] for e in events] == [2]


def test_concurrent_appends_do_not_interleave(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: log.write("progress", i=i, text="x" * 5000), range(200)))
    events, _ = read_events(path)
    assert sorted(e.data["i"] for e in events) == list(range(200))


def test_an_absent_log_is_empty_and_stays_absent(tmp_path):
    assert read_events(tmp_path / "events.jsonl", 7) == ([], 7)
    assert not (tmp_path / "events.jsonl").exists()


def test_unknown_kinds_of_a_newer_writer_are_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"time": 1.0, "kind": "invented"}) + "\n")
    EventLog(path).write("finished")
    events, _ = read_events(path)
    assert [e.kind for e in events] == ["finished"]


def test_an_event_that_a_full_disk_has_no_room_for_is_dropped(tmp_path, monkeypatch):
    """Work that can go on does not end for a line of its log, and the next line is whole."""
    log = EventLog(tmp_path / "events.jsonl")
    log.write("started")
    write = os.write
    answers = iter([OSError(errno.ENOSPC, "full"), 5, OSError(errno.EDQUOT, "full"), None])

    def on_full_disk(fd, data):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return write(fd, data[:answer])

    monkeypatch.setattr(os, "write", on_full_disk)
    for kind in ("progress", "metric", "checkpoint", "finished"):
        log.write(kind)
    monkeypatch.undo()
    assert [event.kind for event in read_events(log.path)[0]] == ["started", "finished"]


def test_other_errors_of_the_log_are_raised(tmp_path):
    log = EventLog(tmp_path / "run/events.jsonl")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        log.write("started")
