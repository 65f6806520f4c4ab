"""Optional: tell somebody when a run fails. Off unless PAMP_FAILURE_WEBHOOK is set where Dagster starts."""

import json
import os
import time
import urllib.error
import urllib.request

import dagster as dg

VARIABLE = "PAMP_FAILURE_WEBHOOK"
"""An URL that takes a JSON POST with ``text``, as Slack and Mattermost do. It is a secret: only the environment."""

_SHOWN_TAGS = ("model", "training_config", "version", "profile", "dagster/partition")
_TIMEOUT_S = 10
_MOST_CHARACTERS = 1500
_TRIED_FOR_S = 24 * 3600
"""After the end of the run. What nobody takes for so long must not keep the failures after it for ever."""
_TRY_AGAIN = {408, 425, 429}
"""Of the HTTP statuses below 500, those that ask to come back."""


class NotPosted(dg.DagsterError):
    """Nobody took the message, and the next tick tries again.

    Dagster takes any other exception of a failure sensor for handled: it shows it, and goes on to the next failed run.
    """


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
        try:
            post(os.environ[VARIABLE], message(context.dagster_run, context.failure_event.message or ""))
        except OSError as error:
            record = context.instance.get_run_record_by_id(context.dagster_run.run_id)
            if record and is_worth_another_try(error, record.update_timestamp.timestamp()):
                raise NotPosted(f"{VARIABLE}: {error}; the next tick tries again.") from error
            raise

    return [webhook]


def message(run: dg.DagsterRun, reason: str) -> str:
    """What is posted: which run, of what, and why."""
    about = ", ".join(f"{name.rpartition('/')[2]} {run.tags[name]}" for name in _SHOWN_TAGS if name in run.tags)
    return f"Run {run.run_id[:8]} of {run.job_name} failed ({about or 'no partition'}): {reason[:_MOST_CHARACTERS]}"


def post(url: str, text: str) -> None:
    """Raises OSError when nobody answers or the message is refused."""
    data = json.dumps({"text": text}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass


def is_worth_another_try(error: OSError, ended: float) -> bool:
    """Whether the same message may be taken later; ``ended``: Unix time in seconds at which its run ended."""
    if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in _TRY_AGAIN:
        return False
    return time.time() - ended < _TRIED_FOR_S
