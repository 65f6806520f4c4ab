"""Editing a declaration makes exactly the partitions that read it stale."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.assets import raw_corpus
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.declarations import observe
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.sensors import register_checkpoints, watch_declarations
from pamp_pipelines.orchestration.staleness import is_stale
from pamp_pipelines.project import Project

MADE = {
    "raw_corpus": ["plays", "sonnets"],
    "tokenized_shards": ["plays|imported", "plays|scratch", "sonnets|imported", "sonnets|scratch"],
    "megatron_checkpoint": ["imported", "scratch"],
    "pretrained_checkpoint": ["imported|both", "scratch|both", "scratch|sonnets-only"],
    "hf_export": ["scratch/both/v0001/0000004"],
}


@pytest.fixture
def materialized(own_project: Project, instance: dg.DagsterInstance) -> Project:
    """Every partition recorded by a run, without the work."""
    catalog = load_catalog(own_project)
    observe(instance, catalog, instance.report_runless_asset_event)
    real = build_definitions(own_project)
    graph = real.resolve_asset_graph()
    recorded = [recording(graph.get(dg.AssetKey(asset))) for asset in MADE]
    externals = [a for a in real.assets or () if isinstance(a, dg.AssetSpec)]
    job = dg.Definitions([*externals, *recorded], executor=dg.in_process_executor)
    for asset, partitions in MADE.items():
        for partition in partitions:
            if asset == "hf_export":
                instance.add_dynamic_partitions("checkpoint", [partition])
                tags = {"dagster/data_version": "c"}
                for event in (dg.AssetObservation, dg.AssetMaterialization):
                    instance.report_runless_asset_event(event("checkpoint", partition=partition, tags=tags))
            job.resolve_implicit_global_asset_job_def().execute_in_process(
                asset_selection=[dg.AssetKey(asset)], partition_key=partition, instance=instance
            )
    return own_project


def recording(node: Any) -> dg.AssetsDefinition:
    """An asset of the same place in the graph that makes nothing."""
    spec = node.assets_def.get_asset_spec(node.key)

    @dg.multi_asset(specs=[spec.replace_attributes(automation_condition=None)], name=spec.key.path[-1])
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        return dg.MaterializeResult(data_version=dg.DataVersion("content"))

    return made


def stale(project: Project, instance: dg.DagsterInstance) -> dict[str, set[str]]:
    graph = build_definitions(project).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return {
        asset: found
        for asset, partitions in MADE.items()
        if (found := {p for p in partitions if resolver.get_status(dg.AssetKey(asset), p) is not StaleStatus.FRESH})
    }


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def tick(project: Project, instance: dg.DagsterInstance, loaded: Project | None = None) -> dg.SensorResult:
    sensor = watch_declarations(load_catalog(loaded or project))
    result = sensor(dg.build_sensor_context(instance=instance))
    assert isinstance(result, dg.SensorResult)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    return result


Edit = tuple[str, Callable[[str], str]]


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("models/scratch", "hidden_size: 32", "hidden_size: 64", {
            "tokenized_shards": {"plays|scratch", "sonnets|scratch"},
            "megatron_checkpoint": {"scratch"},
            "pretrained_checkpoint": {"scratch|both", "scratch|sonnets-only"},
        }),
        ("training_configs/both", "iterations: 8", "iterations: 12", {
            "pretrained_checkpoint": {"imported|both", "scratch|both"},
        }),
        ("corpora/plays", "fraction: 0.3", "fraction: 0.4", {
            "raw_corpus": {"plays"},
            "tokenized_shards": {"plays|imported", "plays|scratch"},
        }),
        ("training_configs/both", '"0 3 * * 1"', '"0 4 * * 1"', {}),
        ("models/scratch", "Random weights.", "Other words.", {}),
    ],
)  # fmt: skip
def test_what_an_edit_makes_stale(
    materialized: Project,
    instance: dg.DagsterInstance,
    file: str,
    old: str,
    new: str,
    expected: dict[str, set[str]],
) -> None:
    assert tick(materialized, instance).asset_events == []
    assert stale(materialized, instance) == {}
    edit(materialized.assets / f"{file}.yaml", old, new)
    tick(materialized, instance)
    assert stale(materialized, instance) == expected
    edit(materialized.assets / f"{file}.yaml", new, old)
    tick(materialized, instance)
    assert stale(materialized, instance) == {}


def test_a_launch_before_the_sensor_saw_an_edit_is_of_the_edited_declaration(
    own_project: Project, instance: dg.DagsterInstance
) -> None:
    tick(own_project, instance)
    plays = own_project.assets / "corpora/plays.yaml"
    scan(own_project, instance, lambda: None)
    edit(plays, "fraction: 0.3", "fraction: 0.4")
    scan(own_project, instance, lambda: None)
    tick(own_project, instance)
    assert not stale_plays(own_project, instance)
    edit(plays, "fraction: 0.4", "fraction: 0.5")
    tick(own_project, instance)
    assert stale_plays(own_project, instance)
    # what is edited while the run reads the text was not read by it
    scan(own_project, instance, lambda: edit(plays, "fraction: 0.5", "fraction: 0.6"))
    tick(own_project, instance)
    assert stale_plays(own_project, instance)
    scan(own_project, instance, lambda: None)
    assert not stale_plays(own_project, instance)
    # also where that brings back what the sensor had seen before the launch
    edit(plays, "fraction: 0.6", "fraction: 0.7")
    scan(own_project, instance, lambda: edit(plays, "fraction: 0.7", "fraction: 0.6"))
    tick(own_project, instance)
    assert stale_plays(own_project, instance)


def scan(project: Project, instance: dg.DagsterInstance, meanwhile: Callable[[], object]) -> None:
    """A launch as from the UI, which observes nothing before."""
    with pytest.MonkeyPatch.context() as patch:

        def scanned(*arguments: Any) -> Artifact:
            artifact = scan_corpus(*arguments)
            meanwhile()
            return artifact

        patch.setattr(raw_corpus, "scan_corpus", scanned)
        build_definitions(project).resolve_implicit_global_asset_job_def().execute_in_process(
            asset_selection=[dg.AssetKey("raw_corpus")], partition_key="plays", instance=instance
        )


def stale_plays(project: Project, instance: dg.DagsterInstance) -> bool:
    graph = build_definitions(project).resolve_asset_graph()
    return is_stale(instance, graph, dg.AssetKey("raw_corpus"), "plays")


def test_the_sensor_reports_each_declaration_once(own_project: Project, instance: dg.DagsterInstance) -> None:
    first = tick(own_project, instance)
    assert sorted(f"{e.asset_key.to_user_string()} {e.partition}" for e in first.asset_events[::2]) == [
        "corpus_declaration plays",
        "corpus_declaration sonnets",
        "model_declaration imported",
        "model_declaration scratch",
        "training_declaration both",
        "training_declaration sonnets-only",
    ]
    # the version that staleness goes by comes first
    assert [type(e) for e in first.asset_events] == [dg.AssetObservation, dg.AssetMaterialization] * 6
    assert tick(own_project, instance).asset_events == []


def test_a_corpus_that_another_one_makes_leads_to_its_file(own_project: Project, instance: dg.DagsterInstance) -> None:
    sonnets = own_project.assets / "corpora/sonnets.yaml"
    sonnets.write_text(sonnets.read_text() + "shard_sets: {title: meta.title}\n")
    events = {event.partition: event for event in tick(own_project, instance).asset_events}
    assert events["sonnets.title"].metadata["file"].value == str(sonnets)


def test_an_edit_is_seen_within_a_minute_even_when_a_tick_is_missed(tiny_project: Project) -> None:
    interval = watch_declarations(load_catalog(tiny_project)).minimum_interval_seconds
    assert interval is not None
    assert 2 * interval <= 30


def test_the_sensor_says_what_is_not_loaded_and_what_cannot_be_read(
    own_project: Project, instance: dg.DagsterInstance
) -> None:
    sensor = watch_declarations(load_catalog(own_project))
    models = own_project.assets / "models"
    (models / "new.yaml").write_text((models / "scratch.yaml").read_text())
    (own_project.assets / "corpora/plays.yaml").write_text("sources: [\n")
    result = sensor(dg.build_sensor_context(instance=instance))
    assert isinstance(result, dg.SensorResult)
    assert "new" not in {event.partition for event in result.asset_events}
    message = str(result.skip_reason)
    assert "models/new" in message
    assert "Press Reload definitions" in message
    assert "plays.yaml" in message


def test_a_missed_checkpoint_is_registered_once_it_is_old(
    own_project: Project, instance: dg.DagsterInstance, kept_checkpoint: Callable[[str, float], None]
) -> None:
    old, young = "scratch/both/v0001/0000004", "scratch/both/v0001/0000008"
    kept_checkpoint(old, 300)
    kept_checkpoint(young, 1)
    pamp = ProjectResource(root=str(own_project.root))

    def messages() -> str:
        skip = register_checkpoints()(dg.build_sensor_context(instance=instance, resources={"pamp": pamp}))
        assert isinstance(skip, dg.SkipReason)
        return str(skip.skip_message)

    assert messages() == f"Added {old}."
    assert instance.get_dynamic_partitions("checkpoint") == [old]
    assert messages() == "Every kept checkpoint is known."
    assert CheckpointKey.parse(old).step == 4
