"""The executor of a run's process: how a run ends whose step fails."""

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from pamp_pipelines.orchestration.executor import waiting_executor
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.project import Project


@pytest.fixture
def instance(own_project: Project) -> Iterator[dg.DagsterInstance]:
    with open_instance(own_project) as instance:
        yield instance


@pytest.mark.parametrize("forced", [True, False])
def test_a_run_that_was_canceled_by_force_stays_so_when_its_step_fails(
    instance: dg.DagsterInstance, forced: bool
) -> None:
    """The step of a run that is ended by force ends a moment later, as a failure that is not tried again."""

    @dg.asset
    def step(context: dg.AssetExecutionContext) -> None:
        if forced:
            context.instance.report_run_canceled(context.run, message="forcibly marked as canceled")
        raise dg.Failure("the worker was asked to stop", allow_retries=False)

    job = dg.Definitions([step], executor=waiting_executor).resolve_implicit_global_asset_job_def()
    run = instance.create_run_for_job(job)
    events = list(execute_run_iterator(InMemoryJob(job), run, instance))
    ended = instance.get_run_by_id(run.run_id)
    assert ended
    assert events
    assert ended.status is (dg.DagsterRunStatus.CANCELED if forced else dg.DagsterRunStatus.FAILURE)
