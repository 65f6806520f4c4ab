import uuid

import dagster as dg
import pytest

from pamp_pipelines.errors import InputError, MissingInput, PampError, VerificationFailed, WorkerCanceled, WorkerFailed
from pamp_pipelines.orchestration.failures import as_failures, stage_error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InputError("no such file"), 1),
        (MissingInput("raw_corpus", "plays"), 1),
        (PampError("the disk is full"), 1),
        (WorkerCanceled("asked to stop"), 1),
        (WorkerFailed("out of memory", -9), 3),
    ],
)
def test_only_a_failed_worker_is_tried_again(error: PampError, expected: int) -> None:
    count = 0

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=2))
    def stage() -> None:
        nonlocal count
        count += 1
        with as_failures():
            raise error

    result = dg.materialize([stage], raise_on_error=False)
    assert not result.success
    assert count == expected


def test_an_interrupt_is_a_failure_without_retries() -> None:
    with pytest.raises(dg.Failure) as failure, as_failures():
        raise dg.DagsterExecutionInterruptedError
    assert failure.value.allow_retries is False


def test_a_missing_input_names_asset_partition_and_command() -> None:
    with pytest.raises(dg.Failure) as failure, as_failures():
        raise MissingInput("tokenized_shards", "plays|scratch")
    assert "pamp materialize tokenized_shards --partition 'plays|scratch'" in (failure.value.description or "")
    assert failure.value.metadata["missing_asset"].value == "tokenized_shards"
    assert failure.value.metadata["missing_partition"].value == "plays|scratch"


def ended_with(instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> BaseException:
    """What a caller gets for a run of ``asset`` that fails in this process."""
    job = dg.Definitions([asset], executor=dg.in_process_executor).resolve_implicit_global_asset_job_def()
    run_id = str(uuid.uuid4())
    with pytest.raises((dg.Failure, dg.DagsterError)) as raised:
        job.execute_in_process(instance=instance, run_id=run_id)
    return stage_error(raised.value, instance, run_id)


def test_a_caller_gets_the_error_of_the_stage(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def stage() -> None:
        with as_failures():
            raise InputError("corpus.yaml: no such file")

    error = ended_with(instance, stage)
    assert isinstance(error, InputError)
    assert str(error) == "corpus.yaml: no such file"


def test_a_caller_gets_the_failure_of_the_worker_after_the_last_retry(instance: dg.DagsterInstance) -> None:
    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def stage() -> None:
        with as_failures():
            raise WorkerFailed("rank 1: exit status 1", 1, ["out of memory"])

    error = ended_with(instance, stage)
    assert isinstance(error, WorkerFailed)
    assert str(error) == "rank 1: exit status 1\n    out of memory"


def test_a_caller_gets_the_verdict_of_a_blocking_check(instance: dg.DagsterInstance) -> None:
    @dg.asset(check_specs=[dg.AssetCheckSpec("loss_fell", asset="stage", blocking=True)])
    def stage() -> dg.MaterializeResult:
        return dg.MaterializeResult(
            check_results=[dg.AssetCheckResult(passed=False, check_name="loss_fell", description="It rose.")]
        )

    error = ended_with(instance, stage)
    assert isinstance(error, VerificationFailed)
    assert str(error) == "stage: check loss_fell failed: It rose."


def test_an_interrupted_run_interrupts_the_caller(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def stage() -> None:
        with as_failures():
            raise dg.DagsterExecutionInterruptedError

    assert isinstance(ended_with(instance, stage), KeyboardInterrupt)
