import datetime

import dagster as dg
import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.orchestration.retention import VARIABLE, forget_old_runs, forget_runs

LATER = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)


@dg.asset
def made() -> None: ...


@dg.asset
def failed(context: dg.AssetExecutionContext) -> None:
    context.log_event(dg.AssetObservation("failed", metadata={"loss": 1.0}))
    raise ValueError


def run(instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> str:
    return dg.materialize([asset], instance=instance, raise_on_error=False).run_id


def known(instance: dg.DagsterInstance) -> set[str]:
    return {run.run_id for run in instance.get_runs()}


def test_only_old_runs_without_a_result_are_deleted(instance: dg.DagsterInstance) -> None:
    first, lost, kept, lost_too = (run(instance, asset) for asset in (made, failed, made, failed))
    assert forget_runs(instance, LATER - datetime.timedelta(hours=2), None)[0] == 0
    deleted, cursor = forget_runs(instance, LATER, None)
    assert deleted == 2
    assert known(instance) == {first, kept}
    assert not instance.all_logs(lost)
    assert instance.get_latest_materialization_event(dg.AssetKey("made")) is not None
    # what was kept is not looked at again; what came since is
    new = run(instance, failed)
    assert forget_runs(instance, LATER, cursor)[0] == 1
    assert known(instance) == {first, kept}
    assert lost_too != new


def test_a_run_that_ends_after_younger_ones_is_deleted_too(instance: dg.DagsterInstance) -> None:
    @dg.job
    def training() -> None: ...

    long = instance.create_run_for_job(training)
    run(instance, made)
    _, cursor = forget_runs(instance, LATER, None)
    instance.report_run_failed(long)
    assert forget_runs(instance, LATER, cursor)[0] == 1
    assert long.run_id not in known(instance)


def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert forget_old_runs() == []
    monkeypatch.setenv(VARIABLE, "90")
    (sensor,) = forget_old_runs()
    run(instance, failed)
    context = dg.build_sensor_context(instance=instance)
    assert str(sensor(context).skip_message) == "No run to delete."  # type: ignore[union-attr]
    assert len(known(instance)) == 1


@pytest.mark.parametrize("days", ["0", "-1", "ninety", "nan", "1e9", "inf"])
def test_a_number_of_days_is_needed(days: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, days)
    with pytest.raises(InputError, match=f"{VARIABLE}={days}: not a number of days above 0"):
        forget_old_runs()
