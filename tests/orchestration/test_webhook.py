"""The webhook is off by default, and says which run failed and why."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest

from pamp_pipelines.orchestration.webhook import VARIABLE, NotPosted, failure_webhook, is_worth_another_try


def test_off_unless_a_url_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert failure_webhook() == []


class Receiver(HTTPServer):
    """Answers with the statuses it is given, then with 200; ``posted`` is what it took."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = list(statuses)
        self.posted: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status == 200:
            self.server.posted.append(content)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@dg.op
def fails() -> None:
    raise ValueError("no room")


@dg.job(tags={"model": "tiny", "dagster/partition": "tiny|both"})
def train() -> None:
    fails()


class Ticks:
    """Ticks of the sensor, each from the cursor that the daemon would have kept."""

    def __init__(self, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
        monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{receiver.server_port}/hook")
        (self.sensor,) = failure_webhook()
        self.instance = instance
        self.cursor: str | None = None
        self.tick()

    def tick(self) -> None:
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor, sensor_name="x") as context:
            self.cursor = self.sensor.evaluate_tick(context).cursor

    def failed_run(self) -> str:
        return train.execute_in_process(instance=self.instance, raise_on_error=False).run_id


def test_a_failed_run_is_posted(monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
    receiver = Receiver()
    ticks = Ticks(instance, monkeypatch, receiver)
    run_id = ticks.failed_run()
    for _ in range(2):
        ticks.tick()
    receiver.shutdown()
    assert len(receiver.posted) == 1
    assert f"Run {run_id[:8]} of train failed (model tiny, partition tiny|both)" in receiver.posted[0]["text"]


def test_what_nobody_took_is_posted_by_a_later_tick(
    monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    receiver = Receiver(503, 429)
    ticks = Ticks(instance, monkeypatch, receiver)
    run_id = ticks.failed_run()
    for _ in range(2):
        with pytest.raises(NotPosted, match="the next tick tries again"):
            ticks.tick()
    for _ in range(2):
        ticks.tick()
    receiver.shutdown()
    assert [run_id[:8] in one["text"] for one in receiver.posted] == [True]


def test_what_is_refused_or_old_does_not_keep_the_next_ones(
    monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    receiver = Receiver(400)
    ticks = Ticks(instance, monkeypatch, receiver)
    ids = [ticks.failed_run() for _ in range(2)]
    for _ in range(2):
        ticks.tick()
    receiver.shutdown()
    assert [ids[1][:8] in one["text"] for one in receiver.posted] == [True]
    assert is_worth_another_try(TimeoutError(), time.time())
    assert not is_worth_another_try(TimeoutError(), time.time() - 2 * 24 * 3600)
