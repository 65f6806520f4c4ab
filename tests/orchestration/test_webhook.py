"""The webhook is off by default, and says which run failed and why."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest

from pamp_pipelines.orchestration.webhook import VARIABLE, failure_webhook


def test_off_unless_a_url_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert failure_webhook() == []


def test_a_failed_run_is_posted(monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
    posted: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_port}/hook")

    @dg.op
    def fails() -> None:
        raise ValueError("no room")

    @dg.job(tags={"model": "tiny", "dagster/partition": "tiny|both"})
    def train() -> None:
        fails()

    result = train.execute_in_process(instance=instance, raise_on_error=False)
    event = next(e for e in result.all_events if e.event_type_value == "PIPELINE_FAILURE")
    context = dg.build_run_status_sensor_context(
        sensor_name="failure_webhook", dagster_event=event, dagster_instance=instance, dagster_run=result.dagster_run
    ).for_run_failure()
    (sensor,) = failure_webhook()
    sensor(context)
    server.shutdown()
    assert len(posted) == 1
    assert f"Run {result.run_id[:8]} of train failed (model tiny, partition tiny|both)" in posted[0]["text"]
