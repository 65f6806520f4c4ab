"""Optional: tell somebody when a run fails. Off unless PAMP_FAILURE_WEBHOOK is set where Dagster starts."""

import json
import os
import urllib.request

import dagster as dg

VARIABLE = "PAMP_FAILURE_WEBHOOK"
"""An URL that takes a JSON POST with ``text``, as Slack and Mattermost do. It is a secret: only the environment."""

_SHOWN_TAGS = ("model", "training_config", "version", "profile", "dagster/partition")
_TIMEOUT_S = 10
_MOST_CHARACTERS = 1500


def failure_webhook() -> list[dg.SensorDefinition]:
    """The sensor, or nothing where no URL is set."""
    if not os.environ.get(VARIABLE):
        return []

    @dg.run_failure_sensor(
        name="failure_webhook",
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Posts each failed run to the URL in {VARIABLE}.",
    )
    def webhook(context: dg.RunFailureSensorContext) -> None:
        post(os.environ[VARIABLE], message(context.dagster_run, context.failure_event.message or ""))

    return [webhook]


def message(run: dg.DagsterRun, reason: str) -> str:
    """What is posted: which run, of what, and why."""
    about = ", ".join(f"{name.rpartition('/')[2]} {run.tags[name]}" for name in _SHOWN_TAGS if name in run.tags)
    return f"Run {run.run_id[:8]} of {run.job_name} failed ({about or 'no partition'}): {reason[:_MOST_CHARACTERS]}"


def post(url: str, text: str) -> None:
    """Raises OSError when nobody answers; the sensor's tick then shows it and the next one tries again."""
    data = json.dumps({"text": text}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass
