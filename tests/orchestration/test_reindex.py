"""A lost home comes back from the manifests: what it showed, and what was stale."""

import contextlib
import json
import shutil
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.lake.publish import lock
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.orchestration import reindex as module
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.materialize import materialize
from pamp_pipelines.orchestration.reindex import Reindexed, curve, reindex
from pamp_pipelines.project import Project

PLAYS = ("raw_corpus", "plays")
SHARDS = ("tokenized_shards", "plays|scratch")


def shown(project: Project, asset: str, partition: str) -> dict[str, Any]:
    """What the UI shows of a partition."""
    key = dg.AssetKey(asset)
    with open_instance(project) as instance:
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
        (record,) = instance.fetch_materializations(wanted, limit=1).records
        made = record.asset_materialization
        assert made is not None
        graph = build_definitions(project).resolve_asset_graph()
        checks = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(graph.get(key).check_keys))
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        return {
            "version": (made.tags or {})["dagster/data_version"],
            "metadata": {name: value.value for name, value in made.metadata.items()},
            "checks": {check.name: record.status.value for check, record in checks.items()},
            "stale": resolver.get_status(key, partition).value,
            "causes": [cause.reason for cause in resolver.get_stale_causes(key, partition)],
        }


def lose_home(project: Project) -> None:
    project.dagster_home.rename(project.dagster_home.with_name("lost"))


def test_everything_that_was_shown_is_shown_again(own_project: Project) -> None:
    for asset, partition in (PLAYS, SHARDS):
        materialize(own_project, asset, partition)
    before = [shown(own_project, *one) for one in (PLAYS, SHARDS)]
    assert [one["stale"] for one in before] == ["FRESH", "FRESH"]
    lose_home(own_project)
    found = {(one.asset, one.partition) for one in reindex(own_project).reported}
    assert found == {PLAYS, SHARDS}
    assert [shown(own_project, *one) for one in (PLAYS, SHARDS)] == before
    assert reindex(own_project) == Reindexed()


def test_one_that_was_killed_before_the_checks_is_made_up_for(
    own_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    materialize(own_project, *PLAYS)
    before = shown(own_project, *PLAYS)
    lose_home(own_project)
    with monkeypatch.context() as patch:
        patch.setattr(module, "report_checks", killed)
        with pytest.raises(KeyboardInterrupt):
            reindex(own_project)
    assert not shown(own_project, *PLAYS)["checks"]
    assert [(one.asset, one.partition) for one in reindex(own_project).reported] == [PLAYS]
    assert shown(own_project, *PLAYS) == before
    assert reindex(own_project) == Reindexed()


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_second_one_says_that_it_waits_and_then_finds_nothing(own_project: Project) -> None:
    materialize(own_project, *PLAYS)
    said: list[str] = []
    with contextlib.ExitStack() as first:
        first.enter_context(lock(own_project.dagster_home / "reindex"))

        def listen(event: Event) -> None:
            said.append(str(event.data.get("message")))
            first.close()

        assert reindex(own_project, listen) == Reindexed()
    message = "another `pamp reindex` is rebuilding it; waiting until that one has ended"
    assert said == [f"{own_project.dagster_home}: {message}"]


def test_sources_that_changed_are_shown_as_before_and_without_a_record_as_stale(own_project: Project) -> None:
    """Dagster does not look at sources: only the id of the corpus says that it is another one now."""
    materialize(own_project, *PLAYS)
    text = own_project.data / "corpora/plays/00.txt"
    text.write_text(text.read_text() + "More.\n")
    shutil.rmtree(own_project.dagster_home)
    reindex(own_project)
    assert shown(own_project, *PLAYS)["stale"] == "FRESH"
    shutil.rmtree(own_project.dagster_home)
    shutil.rmtree(own_project.lake / "recorded")
    reindex(own_project)
    assert shown(own_project, *PLAYS)["stale"] == "STALE"


def test_of_several_artifacts_the_one_that_was_shown_last_is_the_latest(own_project: Project) -> None:
    text = own_project.data / "corpora/plays/00.txt"
    original = text.read_text()
    first = materialize(own_project, *PLAYS)[0]
    text.write_text(original + "More.\n")
    second = materialize(own_project, *PLAYS)[0]
    text.write_text(original)
    shutil.rmtree(own_project.dagster_home)
    assert [one.artifacts for one in reindex(own_project).reported] == [2]
    assert shown(own_project, *PLAYS)["version"] == second.data_version
    shutil.rmtree(own_project.dagster_home)
    shutil.rmtree(own_project.lake / "recorded")  # then the one that is in force
    assert [one.artifacts for one in reindex(own_project).reported] == [2]
    assert shown(own_project, *PLAYS)["version"] == first.data_version


def test_without_records_the_manifests_say_what_is_shown(own_project: Project) -> None:
    for asset, partition in (PLAYS, SHARDS):
        materialize(own_project, asset, partition)
    before = [shown(own_project, *one) for one in (PLAYS, SHARDS)]
    lake = Lake(own_project.lake)
    lake.recorded_file(*PLAYS).write_text("{ cut off")
    shutil.rmtree(own_project.lake / "recorded/tokenized_shards")
    lose_home(own_project)
    done = reindex(own_project)
    assert list(done.left_out) == [str(lake.recorded_file(*PLAYS))]
    # models that share a tokenizer share the shards, so those of the other model are found as well
    found = {(one.asset, one.partition) for one in done.reported}
    assert found == {PLAYS, SHARDS, ("tokenized_shards", "plays|imported")}
    assert [shown(own_project, *one) for one in (PLAYS, SHARDS)] == before


def test_checkpoints_come_back_as_partitions(own_project: Project, kept_checkpoint: Any) -> None:
    key = "scratch/both/v0001/0000004"
    kept_checkpoint(key, 0)
    assert [(one.asset, one.partition) for one in reindex(own_project).reported] == [("checkpoint", key)]
    with open_instance(own_project) as instance:
        assert instance.get_dynamic_partitions("checkpoint") == [key]


def test_a_long_loss_curve_becomes_few_points_with_both_ends(own_project: Project) -> None:
    run = own_project.data / "run"
    run.mkdir()
    lines = [json.dumps({"iteration": step, "loss": 1.0 / step}) for step in range(1, 5001)]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    artifact = Artifact(run, Manifest(kind="pretrained_checkpoint", id="i", content="c", created="now"))
    steps = [point["iteration"] for point in curve(artifact)]
    assert len(steps) == len(set(steps)) == 100
    assert (steps[0], steps[-1]) == (1, 5000)
