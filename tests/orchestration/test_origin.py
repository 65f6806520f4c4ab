"""A run of `pamp materialize` can be executed again from the UI: by the server's own mutation, without a daemon."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load import load_workspace_process_context_from_yaml_paths
from dagster_graphql.test.utils import execute_dagster_graphql

from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.orchestration.origin import origin_in
from pamp_pipelines.project import Project

AGAIN = """
mutation Again($run: String!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $run, strategy: ALL_STEPS}) {
    __typename
    ... on LaunchRunSuccess { run { runId parentRunId status assetSelection { path } tags { key value } } }
    ... on PythonError { message stack }
  }
}"""


@pytest.fixture
def server(own_project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkspaceProcessContext]:
    """What the webserver is, without its HTTP, with the queue that a daemon would empty."""
    monkeypatch.setenv("PAMP_PROJECT", str(own_project.root))
    with (
        open_instance(own_project) as instance,
        load_workspace_process_context_from_yaml_paths(instance, [str(own_project.root / "workspace.yaml")]) as context,
    ):
        yield context


@pytest.mark.slow
def test_a_run_of_this_process_is_executed_again_from_the_ui(
    own_project: Project, server: WorkspaceProcessContext
) -> None:
    (made,) = materialize(own_project, "raw_corpus", "plays")
    answer: Any = execute_dagster_graphql(server.create_request_context(), AGAIN, {"run": made.run_id})
    launched = answer.data["launchRunReexecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run = launched["run"]
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    assert (run["parentRunId"], run["status"], run["assetSelection"]) == (
        made.run_id,
        "QUEUED",
        [{"path": ["raw_corpus"]}],
    )
    assert tags["dagster/partition"] == "plays"
    parent = server.instance.get_run_by_id(str(made.run_id))
    assert parent is not None
    assert parent.status is dg.DagsterRunStatus.SUCCESS
    assert {"dagster/partition", ".dagster/repository"} <= set(parent.tags)


def test_a_workspace_without_this_package_gives_no_origin(own_project: Project) -> None:
    assert origin_in(own_project, "train") is not None
    (own_project.root / "workspace.yaml").write_text("load_from: [{python_module: somebody.elses}]")
    assert origin_in(own_project, "train") is None
