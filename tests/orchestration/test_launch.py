"""What a launch can say, and what its run says about itself."""

import dataclasses
import time
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import WorkerFailed
from pamp_pipelines.orchestration import limits, retries
from pamp_pipelines.orchestration.assets.pretrained_checkpoint import Training
from pamp_pipelines.orchestration.chain import CHAIN
from pamp_pipelines.orchestration.failures import as_failures
from pamp_pipelines.orchestration.jobs import TRAIN_HOURS
from pamp_pipelines.orchestration.limits import within
from pamp_pipelines.orchestration.stage import stage
from pamp_pipelines.orchestration.tags import partition_tags

FIELDS = {"mode", "profile", "max_hours"}
KEYS = {"hf_export": "m/c/v0001/0000001", "eval_scores": "m/c/v0001/0000001"}


def test_every_field_of_the_launchpad_is_described(definitions: dg.Definitions) -> None:
    job = definitions.get_repository_def().get_job("train")
    config = job.graph.node_named("pretrained_checkpoint").definition.config_schema.config_type.fields  # type: ignore[union-attr]
    assert set(config) == FIELDS
    assert all(field.description for field in config.values())


def test_every_job_is_described_and_limited(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()
    jobs = [repository.get_job(name) for name in repository.job_names if not name.startswith("__")]
    assert len(jobs) == 6
    assert all(job.description and int(job.tags["dagster/max_runtime"]) > 0 for job in jobs)


@pytest.mark.parametrize(
    ("asset", "partition", "tags"),
    [
        ("raw_corpus", "plays", {"corpus": "plays"}),
        ("tokenized_shards", "plays|tiny", {"corpus": "plays", "model": "tiny"}),
        ("megatron_checkpoint", "tiny", {"model": "tiny"}),
        ("pretrained_checkpoint", "tiny|both", {"model": "tiny", "training_config": "both"}),
        ("hf_export", "tiny/both/v0003/0000040", {"model": "tiny", "training_config": "both", "version": "v0003"}),
        ("eval_scores/x", "tiny/both/v0003/0000040", {"model": "tiny", "training_config": "both", "version": "v0003"}),
        ("leaderboard", None, {}),
    ],
)
def test_a_run_says_what_it_works_on(
    instance: dg.DagsterInstance, asset: str, partition: str | None, tags: dict[str, str]
) -> None:
    keys = dg.StaticPartitionsDefinition([partition]) if partition else None

    @dg.asset(key=asset.split("/"), partitions_def=keys)
    def made(context: dg.AssetExecutionContext) -> None:
        with stage(context, asset):
            pass

    result = dg.materialize([made], instance=instance, partition_key=partition)
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    names = ("corpus", "model", "training_config", "version")
    assert {name: run.tags[name] for name in names if name in run.tags} == tags
    assert len(run.tags["commit"]) == 40


def test_every_asset_that_runs_is_tagged(definitions: dg.Definitions) -> None:
    """A new asset has to say what its runs work on."""
    graph = definitions.resolve_asset_graph()
    partitioned = {key.path[0] for key in graph.executable_asset_keys if graph.get(key).partitions_def}
    assert partitioned == {a for a in CHAIN if a != "leaderboard"}
    assert all(partition_tags(asset, KEYS.get(asset, "a|b")) for asset in partitioned)


@pytest.mark.parametrize("hours", [0, -1.0, 720.1, float("inf"), float("nan")])
def test_a_limit_that_is_none_is_refused_by_name(hours: float) -> None:
    with pytest.raises(ValidationError, match="max_hours"):
        Training(max_hours=hours)


def test_the_longest_limit_is_that_of_the_job(definitions: dg.Definitions) -> None:
    job = definitions.get_repository_def().get_job("train")
    assert int(job.tags["dagster/max_runtime"]) == TRAIN_HOURS * 3600
    assert Training(max_hours=TRAIN_HOURS).max_hours == TRAIN_HOURS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seconds since the run began, as the limit sees them."""

    class Clock:
        elapsed = 0.0

    quick = [dataclasses.replace(line, delay_s=0) for line in retries.RETRIES]
    monkeypatch.setattr(retries, "RETRIES", quick)
    monkeypatch.setattr(limits, "started", lambda context: time.time() - Clock.elapsed)
    return Clock


def attempts(instance: dg.DagsterInstance, hours: float | None, clock: Any, worker: Any) -> tuple[int, str]:
    """Run an asset whose worker fails; returns how often it was tried and what the last failure said."""
    count = 0

    @dg.asset
    def trained(context: dg.AssetExecutionContext) -> None:
        nonlocal count
        count += 1
        with as_failures(context, resumes=True), within(context, hours, ComputeProfile(timeout_s=7200)) as profile:
            worker(profile)

    result = dg.materialize([trained], instance=instance, raise_on_error=False)
    return count, str(result.get_step_failure_events()[-1].step_failure_data.error_display_string)


def crash(profile: ComputeProfile) -> None:
    raise WorkerFailed(f"rank 0: exit status 1, limit {profile.timeout_s:.0f}", 1)


def test_without_a_limit_the_profile_stays(instance: dg.DagsterInstance, clock: Any) -> None:
    count, text = attempts(instance, None, clock, crash)
    assert count == 3
    assert "limit 7200" in text


def test_a_retry_has_what_is_left_of_the_time(instance: dg.DagsterInstance, clock: Any) -> None:
    clock.elapsed = 1800
    count, text = attempts(instance, 1.0, clock, crash)
    assert count == 3
    assert "limit 1800" in text


def test_a_launch_whose_time_is_up_is_not_tried_again(instance: dg.DagsterInstance, clock: Any) -> None:
    def ended(profile: ComputeProfile) -> None:
        time.sleep(profile.timeout_s or 0)
        raise WorkerFailed("still running after its timeout_s", -15)

    count, text = attempts(instance, 0.2 / 3600, clock, ended)
    assert count == 1
    assert "max_hours" in text
    clock.elapsed = 7200
    assert attempts(instance, 1.0, clock, crash)[0] == 1
