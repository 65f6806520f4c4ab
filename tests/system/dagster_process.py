"""Dagster as its webserver runs it, in the test's process: GraphQL over a code server and run workers of their own.

There is no daemon: what it would take from the queue is launched at once, and what it would find dead is looked for by
`end_leftovers`.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import dagster as dg
import psutil
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_graphql.test.utils import execute_dagster_graphql

from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.leftovers import end_leftovers
from pamp_pipelines.project import Project
from tests.e2e.conftest import LAUNCH, REPOSITORY, TERMINATE

TOKEN = "PAMP_TEST_TOKEN"
ENDED = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}


class DagsterProcess:
    """A context: inside it Dagster is there; `kill` is its sudden end."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._token = secrets.token_hex(8)

    def __enter__(self) -> "DagsterProcess":
        os.environ[TOKEN] = self._token
        self._stack = contextlib.ExitStack()
        self.instance = self._stack.enter_context(open_instance(self._project))
        end_leftovers(self.instance)
        workspace = WorkspaceFileTarget([str(self._project.root / "workspace.yaml")])
        self._process = self._stack.enter_context(WorkspaceProcessContext(self.instance, workspace))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()
        self.kill()
        del os.environ[TOKEN]

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        answer = execute_dagster_graphql(self._process.create_request_context(), text, variables)
        assert not answer.errors, answer.errors
        return dict(answer.data)

    def launch(self, asset: str, partition: str) -> str:
        """Press "Materialize"; returns the run's id."""
        selector = {**REPOSITORY, "pipelineName": "__ASSET_JOB", "assetSelection": [{"path": asset.split("/")}]}
        tags = [{"key": "dagster/partition", "value": partition}]
        params = {"selector": selector, "mode": "default", "executionMetadata": {"tags": tags}}
        launched = self.query(LAUNCH, params=params)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id = str(launched["run"]["runId"])
        self.instance.launch_run(run_id, self._process.create_request_context())
        return run_id

    def terminate(self, run_id: str) -> None:
        """Press "Terminate"."""
        answer = self.query(TERMINATE, id=run_id, policy="SAFE_TERMINATE")["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def run(self, run_id: str) -> dg.DagsterRun:
        found = self.instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def until(self, run_id: str, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait while the run goes on."""
        deadline = time.monotonic() + seconds
        while not condition():
            late = time.monotonic() > deadline or self.run(run_id).status in ENDED
            assert not late, f"{what}: not within {seconds:g} s:\n" + "\n".join(self.messages(run_id))
            time.sleep(0.05)

    def wait(self, run_id: str, seconds: float) -> dg.DagsterRunStatus:
        """How the run ended."""
        deadline = time.monotonic() + seconds
        while (status := self.run(run_id).status) not in ENDED:
            assert time.monotonic() < deadline, f"run not ended in {seconds:g} s:\n" + "\n".join(self.messages(run_id))
            time.sleep(0.3)
        return status

    def messages(self, run_id: str) -> list[str]:
        """The log of a run."""
        return [entry.user_message or entry.message for entry in self.instance.all_logs(run_id)]

    def kill(self) -> None:
        """SIGKILL for code server and run workers; what they started elsewhere lives on."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                env = process.environ()
                if env.get(TOKEN) == self._token and "SLURM_JOB_ID" not in env and process.pid != os.getpid():
                    process.kill()
