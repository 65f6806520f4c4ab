import dagster as dg
import pytest

from pamp_pipelines.errors import InputError, MissingInput, PampError, WorkerCanceled, WorkerFailed
from pamp_pipelines.orchestration.failures import as_failures


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
