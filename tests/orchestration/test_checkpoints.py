from pathlib import Path

import dagster as dg

from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.checkpoints import CHECKPOINT, announce
from pamp_pipelines.orchestration.versions import recorded_version

KEY = CheckpointKey("tiny", "both", 1, 4)


def manifest(content: str = "c1") -> Manifest:
    return Manifest(kind="checkpoint", id="i", content=content, created="now", location=str(Path("/lake/iter_4")))


def announced(instance: dg.DagsterInstance, content: str = "c1") -> list[str]:
    kinds: list[str] = []

    def emit(event: dg.AssetObservation | dg.AssetMaterialization) -> None:
        kinds.append(type(event).__name__)
        instance.report_runless_asset_event(event)

    announce(instance, emit, KEY, manifest(content))
    return kinds


def test_partition_then_observation_then_materialisation(instance: dg.DagsterInstance) -> None:
    assert announced(instance) == ["AssetObservation", "AssetMaterialization"]
    assert instance.get_dynamic_partitions("checkpoint") == [str(KEY)] == ["tiny/both/v0001/0000004"]
    assert recorded_version(instance, CHECKPOINT, str(KEY)) == "c1"


def test_a_known_checkpoint_is_not_reported_again(instance: dg.DagsterInstance) -> None:
    announced(instance)
    assert announced(instance) == []
    assert announced(instance, "c2") == ["AssetObservation", "AssetMaterialization"]


def test_metadata_leads_to_the_files(instance: dg.DagsterInstance) -> None:
    announced(instance)
    event = instance.get_latest_materialization_event(CHECKPOINT)
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["dagster/uri"].value == "/lake/iter_4"
    assert event.asset_materialization.metadata["step"].value == 4
