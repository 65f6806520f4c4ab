"""One process for a run: Dagster's in-process executor, which waits for a pool without being deaf or busy.

There is one chain in a run, and no step process can outlive a run that was killed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.executor_definition import IN_PROC_CONFIG
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.events import EngineEventData
from dagster._core.execution.api import ExecuteRunWithPlanIterable
from dagster._core.execution.context.system import PlanExecutionContext, PlanOrchestrationContext
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.execute_in_process import core_execute_in_process, merge_run_tags
from dagster._core.execution.plan.execute_plan import inner_plan_execution_iterator
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.execution.step_dependency_config import StepDependencyConfig
from dagster._core.executor.in_process import InProcessExecutor

from pamp_pipelines.orchestration.ended import run_status
from pamp_pipelines.orchestration.leftovers import process_tags
from pamp_pipelines.orchestration.origin import adopt
from pamp_pipelines.orchestration.pools import WaitingSlots


class WaitingExecutor(InProcessExecutor):
    """``InProcessExecutor`` with other claims of slots; its run is known by its process before it waits for one."""

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """The events of all steps, as in the class that this one replaces."""
        run_id, instance = plan_context.run_id, plan_context.instance
        instance.add_run_tags(run_id, process_tags(run_id))  # by which it is found to be dead when it is killed
        adopt(instance, run_id)
        yield dg.DagsterEvent.engine_event(
            plan_context,
            f"Executing steps in process (pid: {os.getpid()})",
            event_specific_data=EngineEventData.in_process(os.getpid(), execution_plan.step_keys_to_execute),
        )
        yield from ExecuteRunWithPlanIterable(
            execution_plan=plan_context.execution_plan,
            iterator=_steps,
            execution_context_manager=PlanExecutionContextManager(
                job=plan_context.job,
                retry_mode=plan_context.retry_mode,
                execution_plan=plan_context.execution_plan,
                run_config=plan_context.run_config,
                dagster_run=plan_context.dagster_run,
                instance=instance,
                raise_on_error=plan_context.raise_on_error,
                output_capture=plan_context.output_capture,
                step_dependency_config=self.step_dependency_config,
            ),
        )


def _steps(job_context: PlanExecutionContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
    instance, run = job_context.instance, job_context.dagster_run
    with WaitingSlots(instance, run) as slots:
        yield from inner_plan_execution_iterator(job_context, execution_plan, slots)
    # "Force termination" says so before the step has ended; a step that then fails would make the run a failed one
    if run_status(instance, run.run_id) is dg.DagsterRunStatus.CANCELED:
        raise dg.DagsterExecutionInterruptedError("the run was canceled while its step ended")


@dg.executor(name="in_process", config_schema=IN_PROC_CONFIG)
def waiting_executor(init_context: dg.InitExecutorContext) -> WaitingExecutor:
    """Takes the configuration of Dagster's own, so that launches of that one can be repeated."""
    config: Mapping[str, Any] = init_context.executor_config
    return WaitingExecutor(
        retries=RetryMode.from_config(config["retries"]) or RetryMode.ENABLED,
        step_dependency_config=StepDependencyConfig.from_config(config.get("step_dependency_config")),
    )


def execute_here(
    job: dg.JobDefinition,
    assets: Sequence[dg.AssetKey],
    partition: str | None,
    instance: dg.DagsterInstance,
    run_id: str,
    run_config: Mapping[str, Any],
) -> dg.ExecuteInProcessResult:
    """``JobDefinition.execute_in_process``, which would put Dagster's own executor in place of the job's.

    The run exists, and says which process it is of, before it claims anything: a slot of a run that does not exist
    would never be freed.

    Raises:
        Failure, DagsterError: a step failed.
        DagsterExecutionInterruptedError: the run was canceled before its first step.
    """
    selected = job.as_ephemeral_job(resource_defs={}, input_values={}, asset_selection=assets)
    tags = merge_run_tags(job, partition, process_tags(run_id), assets, instance, run_config)
    return core_execute_in_process(
        run_config=run_config,
        job=InMemoryJob(job_def=selected.with_executor_def(waiting_executor)),
        instance=instance,
        output_capturing_enabled=True,
        raise_on_error=True,
        run_tags=tags,
        run_id=run_id,
        asset_selection=frozenset(assets),
    )
