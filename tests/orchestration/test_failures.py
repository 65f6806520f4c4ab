import dataclasses
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import dagster as dg
import pytest

from pamp_pipelines.errors import (
    DiskFull,
    InfrastructureFailed,
    InputError,
    LauncherError,
    MissingInput,
    PampError,
    RunDiverged,
    StorageError,
    VerificationFailed,
    WorkerCanceled,
    WorkerFailed,
    WorkerPreempted,
)
from pamp_pipelines.lake.events import Event
from pamp_pipelines.orchestration import ended, retries
from pamp_pipelines.orchestration.events import listener
from pamp_pipelines.orchestration.failures import as_failures, stage_error
from pamp_pipelines.orchestration.retries import continues_a_version, refuse_after_max_runtime, retry_of

PREEMPTED, BROKEN, CRASHED = WorkerPreempted("gone", None), InfrastructureFailed("node", None), WorkerFailed("oom", -9)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRIES", [dataclasses.replace(line, delay_s=0) for line in retries.RETRIES])


def attempts(errors: Sequence[PampError], *, resumes: bool) -> int:
    """How often a real run tries a stage that fails with each error in turn, the last one again and again."""
    count = 0

    @dg.asset
    def stage(context: dg.AssetExecutionContext) -> None:
        nonlocal count
        count += 1
        with as_failures(context, resumes=resumes):
            raise errors[min(count, len(errors)) - 1]

    assert not dg.materialize([stage], raise_on_error=False).success
    return count


@pytest.mark.parametrize(
    ("error", "training", "other"),
    [
        (PREEMPTED, 101, 101),
        (BROKEN, 6, 6),
        (LauncherError("sbatch does not answer"), 6, 6),
        (StorageError("the store does not answer"), 6, 6),
        (CRASHED, 3, 1),
        (RunDiverged("NaN"), 1, 1),
        (InputError("no such file"), 1, 1),
        (MissingInput("raw_corpus", "plays"), 1, 1),
        (VerificationFailed("other bytes"), 1, 1),
        (PampError("something"), 1, 1),
        (WorkerCanceled("asked to stop"), 1, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PampError) else str(value),
)
def test_the_kind_of_failure_decides_over_another_attempt(error: PampError, training: int, other: int) -> None:
    for resumes, expected in ((True, training), (False, other)):
        if expected > 10:  # a hundred attempts of a run prove no more than the line of the table
            line = retry_of(error, resumes=resumes)
            assert line is not None
            assert line.most == expected - 1
        else:
            assert attempts([error], resumes=resumes) == expected


def test_a_cancel_is_heard_while_the_next_attempt_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's own wait between attempts is deaf until it ends."""
    monkeypatch.setattr(retries, "RETRIES", [dataclasses.replace(line, delay_s=600) for line in retries.RETRIES])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            signal.raise_signal(signal.SIGTERM)  # what "Terminate" sends

    monkeypatch.setattr(retries, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    heard: list[Event] = []
    token = listener.set(heard.append)  # as a command's progress does
    try:
        assert attempts([BROKEN], resumes=True) == 1
    finally:
        listener.reset(token)
    assert slept == [retries.HEARING_S] * 3
    assert [event.data["message"] for event in heard] == ["node\nThe next attempt is in 600 s."]


def test_a_run_that_was_ended_elsewhere_does_not_wait_on(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "LOOK_S", 0.0)
    run = instance.create_run_for_job(dg.JobDefinition(graph_def=dg.GraphDefinition("g"), name="job"))
    instance.report_run_canceled(run)
    with pytest.raises(dg.DagsterExecutionInterruptedError, match="CANCELED"):
        retries.wait(cast(dg.AssetExecutionContext, SimpleNamespace(instance=instance, run=run)), 600)


def test_a_full_disk_is_not_tried_again(tmp_path: Path) -> None:
    assert retry_of(DiskFull(tmp_path), resumes=True) is None


def test_kinds_are_counted_apart() -> None:
    """Preemptions do not use up what a crash has."""
    assert attempts([PREEMPTED] * 4 + [CRASHED, BROKEN, PREEMPTED, CRASHED, CRASHED], resumes=True) == 9


def test_delays_grow_to_a_limit_but_for_preemption() -> None:
    delays = {line.failure: dataclasses.replace(line, delay_s=60) for line in retries.RETRIES}
    assert [delays[InfrastructureFailed].delay(n) for n in range(7)] == [60, 120, 240, 480, 960, 1800, 1800]
    assert delays[WorkerPreempted].delay(50) == 60


def started_for(
    instance: dg.DagsterInstance, said: str | None, parent_tags: dict[str, str], own_tags: dict[str, str]
) -> dg.AssetExecutionContext:
    """The context of a run that stands for one which failed with these words; None: which succeeded."""
    job = dg.JobDefinition(graph_def=dg.GraphDefinition("g"), name="job")
    parent = instance.create_run_for_job(job, tags=parent_tags)
    if said is None:
        instance.handle_run_event(parent.run_id, dg.DagsterEvent("PIPELINE_SUCCESS", "job"))
    else:
        instance.report_run_failed(parent, said)
    run = SimpleNamespace(parent_run_id=parent.run_id, tags=own_tags)
    return cast(dg.AssetExecutionContext, SimpleNamespace(instance=instance, run=run, retry_number=0))


AUTOMATIC = {"dagster/retry_number": "1"}
TOO_LONG, LOST = "Exceeded maximum runtime of 5 seconds.", "The process that executed this run was killed."


def test_a_run_that_took_its_maximum_runtime_is_not_run_again_by_itself(instance: dg.DagsterInstance) -> None:
    with pytest.raises(dg.Failure, match="maximum runtime of 5 seconds") as failure:
        refuse_after_max_runtime(started_for(instance, TOO_LONG, {}, AUTOMATIC))
    assert failure.value.allow_retries is False
    refuse_after_max_runtime(started_for(instance, TOO_LONG, {}, {}))  # somebody pressed Re-execute
    refuse_after_max_runtime(started_for(instance, LOST, {}, AUTOMATIC))


@pytest.mark.parametrize(
    ("said", "tags", "expected"),
    [(LOST, {"version": "v0003"}, True), (LOST, {}, False), (None, {"version": "v0003"}, False)],
)
def test_a_run_goes_on_with_the_version_of_the_one_it_stands_for(
    instance: dg.DagsterInstance, said: str | None, tags: dict[str, str], expected: bool
) -> None:
    assert continues_a_version(started_for(instance, said, tags, {})) is expected


def test_an_interrupt_is_a_failure_without_retries() -> None:
    with pytest.raises(dg.Failure) as failure, as_failures(dg.build_asset_context()):
        raise dg.DagsterExecutionInterruptedError
    assert failure.value.allow_retries is False


def test_a_missing_input_names_asset_partition_and_command() -> None:
    with pytest.raises(dg.Failure) as failure, as_failures(dg.build_asset_context()):
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


@pytest.mark.parametrize(
    "error", [InputError("corpus.yaml: no such file"), WorkerFailed("rank 1: exit status 1", 1, ["out of memory"])]
)
def test_a_caller_gets_the_error_of_the_stage_after_the_last_attempt(
    instance: dg.DagsterInstance, error: PampError
) -> None:
    @dg.asset
    def stage(context: dg.AssetExecutionContext) -> None:
        with as_failures(context, resumes=True):
            raise error

    assert ended_with(instance, stage) is error


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
    def stage(context: dg.AssetExecutionContext) -> None:
        with as_failures(context):
            raise dg.DagsterExecutionInterruptedError

    assert isinstance(ended_with(instance, stage), KeyboardInterrupt)
