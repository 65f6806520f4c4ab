from pathlib import Path

import dagster as dg
import pytest

from pamp_pipelines.lake.events import Event, event
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.orchestration.events import JOB_TAG, Reporter, listener


def run_with(
    events: list[tuple[float, Event]], instance: dg.DagsterInstance | None = None
) -> dg.ExecuteInProcessResult:
    """Hand ``events`` to a reporter inside a run; each comes with the clock's time in seconds."""
    now = 0.0

    @dg.asset
    def trained(context: dg.AssetExecutionContext) -> None:
        nonlocal now
        reporter = Reporter(context, dg.AssetKey("trained"), clock=lambda: now)
        for time, one in events:
            now = time
            reporter(one)
        reporter.close()

    return dg.materialize([trained], instance=instance)


def observed(result: dg.ExecuteInProcessResult) -> list[float]:
    return [o.asset_observation_data.asset_observation.metadata["step"].value for o in observations(result)]


def observations(result: dg.ExecuteInProcessResult) -> list[dg.DagsterEvent]:
    return [e for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]


def test_a_hundred_thousand_metrics_become_a_bounded_number_of_observations(instance: dg.DagsterInstance) -> None:
    metrics = [(step / 1000, event("metric", step=step, loss=1 / (step + 1))) for step in range(100_000)]
    result = run_with(metrics, instance)
    steps = observed(result)
    logged = [entry for entry in instance.all_logs(result.run_id) if entry.user_message.startswith("step ")]
    assert len(logged) == len(steps)  # one line of the log for each
    assert steps == [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000, 80_000, 90_000, 99_999]


def test_a_hundred_thousand_lines_of_output_stay_out_of_the_event_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    (tmp_path / "chatty.py").write_text("for n in range(100_000): print('iteration', n)")
    (tmp_path / "job.json").write_text("{}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    @dg.asset
    def trained(context: dg.AssetExecutionContext) -> None:
        reporter = Reporter(context, dg.AssetKey("trained"))
        run_worker("chatty", tmp_path / "job.json", tmp_path / "run", on_event=reporter)

    result = dg.materialize([trained], instance=instance)
    assert len(instance.all_logs(result.run_id)) < 40
    (log,) = [file for file in (tmp_path / "run/logs").rglob("*") if file.is_file() and file.stat().st_size > 1e6]
    assert len(log.read_text().splitlines()) == 100_000


def test_the_last_metric_is_always_reported() -> None:
    assert observed(run_with([(0, event("metric", step=1)), (1, event("metric", step=2))])) == [1, 2]


def test_numbers_are_plottable_and_a_loss_that_is_not_finite_is_text() -> None:
    result = run_with([(0, event("metric", step=3, loss=2.5, grad_norm=float("nan")))])
    metadata = observations(result)[0].asset_observation_data.asset_observation.metadata
    assert metadata["loss"] == dg.FloatMetadataValue(2.5)
    assert metadata["step"] == dg.IntMetadataValue(3)
    assert metadata["grad_norm"] == dg.TextMetadataValue("nan")


def test_a_listener_hears_every_event() -> None:
    heard: list[Event] = []
    token = listener.set(heard.append)
    try:
        run_with([(0, event("metric", step=n)) for n in range(5)])
    finally:
        listener.reset(token)
    assert [e.data["step"] for e in heard] == [0, 1, 2, 3, 4]


def test_the_clusters_job_is_a_tag_of_its_run(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def trained(context: dg.AssetExecutionContext) -> None:
        Reporter(context, dg.AssetKey("trained"))(event("submitted", launcher="slurm", job="4711"))

    run = instance.get_run_by_id(dg.materialize([trained], instance=instance).run_id)
    assert run is not None
    assert run.tags[JOB_TAG] == "slurm 4711"
