"""Rebuild a lost Dagster home from the lake: manifests are the truth, Dagster's records only an index of it.

Everything is reported as runless events: materialisations with the metadata and checks that their runs had, points of
the loss curves as observations, checkpoints as partitions. Runs, their logs and their times are gone with the home;
each artifact shows when it was made as ``created``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import PampError
from pamp_pipelines.evaluation.export_cache import evicted_export
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.chain import CHAIN, Selection, partitions_of, select
from pamp_pipelines.orchestration.check_reports import report_checks
from pamp_pipelines.orchestration.checkpoints import announce_unknown
from pamp_pipelines.orchestration.declarations import observe
from pamp_pipelines.orchestration.details import details
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.metadata import all_metadata
from pamp_pipelines.orchestration.provenance import provenance_tags
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.uptodate import wanted
from pamp_pipelines.orchestration.values import to_metadata
from pamp_pipelines.orchestration.versions import asset_key, recorded_versions
from pamp_pipelines.project import Project
from pamp_pipelines.training.metrics import read_metrics

CURVE_POINTS = 100
"""Observations of one training run; the full curve is in metrics.jsonl."""


@dataclass(frozen=True)
class Reindexed:
    """What was reported: a partition of an asset, and how many artifacts of it."""

    asset: str
    partition: str | None
    artifacts: int


def reindex(project: Project, on_event: OnEvent = ignore) -> list[Reindexed]:
    """Report whatever the lake holds and the instance in DAGSTER_HOME does not know; a second call finds nothing.

    Args:
        project: whose lake and instance.
        on_event: gets ``progress`` with asset and partition.

    Raises:
        DeclarationError: the declarations are not valid.
    """
    definitions = build_definitions(project)
    with open_instance(project) as instance:
        return list(_Indexer(project, instance, definitions, on_event).run())


class _Indexer:
    def __init__(
        self, project: Project, instance: dg.DagsterInstance, definitions: dg.Definitions, on_event: OnEvent
    ) -> None:
        pamp = ProjectResource(root=str(project.root))
        self.catalog: Catalog = pamp.catalog
        self.lake: Lake = pamp.lake
        self.instance = instance
        self.graph = definitions.resolve_asset_graph()
        self.on_event = on_event

    def run(self) -> Iterator[Reindexed]:
        observe(self.instance, self.catalog, self.instance.report_runless_asset_event)
        for stage in CHAIN:
            if stage == "hf_export":
                for key in announce_unknown(self.instance, self.lake):
                    yield Reindexed("checkpoint", key, 1)
            selection = select(self.catalog, stage)
            for partition in partitions_of(self.catalog, self.lake, stage):
                current = self._current(selection, partition)
                for asset in selection.assets:
                    if count := self._partition(asset, partition, current.get(asset)):
                        yield Reindexed(asset, partition, count)

    def _partition(self, asset: str, partition: str | None, current: str | None) -> int:
        """Report the artifacts of one partition, oldest first, the one that the declarations ask for last."""
        found = _artifacts(self.lake, asset, partition, current)
        known = recorded_versions(self.instance, asset_key(asset), partition)
        if not found or (known and known[0] == found[-1].content):
            return 0
        self.on_event(event("progress", asset=asset, partition=partition))
        missing = [artifact for artifact in found if artifact.content not in known[1:]]
        for artifact in missing:
            self._report(asset, partition, artifact, artifact.id == current)
        return len(missing)

    def _current(self, selection: Selection, partition: str | None) -> dict[str, str]:
        """Ids of the artifacts that a run would make now, by asset; none when its inputs are not there."""
        try:
            ids = [id for _, id in wanted(self.catalog, self.lake, selection, partition or "")]
        except PampError:
            return {}
        return dict(zip(selection.assets, ids, strict=True))

    def _report(self, asset: str, partition: str | None, artifact: Artifact, is_current: bool) -> None:
        key = asset_key(asset)
        report = self.instance.report_runless_asset_event
        if asset == "pretrained_checkpoint":
            for point in curve(artifact):
                report(dg.AssetObservation(key, partition=partition, metadata=to_metadata(point)))
        report(
            dg.AssetMaterialization(
                key,
                partition=partition,
                metadata=all_metadata(artifact, details(artifact)),
                tags=provenance_tags(self.instance, self.graph.get(key), artifact.content, with_inputs=is_current),
            )
        )
        report_checks(self.instance, asset, partition, artifact.manifest)


def curve(artifact: Artifact, points: int = CURVE_POINTS) -> list[dict[str, object]]:
    """Entries of a training run's metrics.jsonl, evenly spaced, the last one among them."""
    entries = read_metrics(artifact.path / "metrics.jsonl")
    if len(entries) <= points:
        return list(entries)
    return [entries[round(n * (len(entries) - 1) / (points - 1))] for n in range(points)]


def _artifacts(lake: Lake, asset: str, partition: str | None, current: str | None) -> list[Artifact]:
    """Artifacts of a partition by age, the current one last."""
    stage, _, evaluation = asset.partition("/")
    key = partition or ""
    match stage:
        case "raw_corpus":
            root = lake.root / "corpora" / key
        case "tokenized_shards":
            root = lake.root / "shards" / key.partition("|")[0]
        case "megatron_checkpoint":
            root = lake.root / "checkpoints" / key
        case "pretrained_checkpoint":
            root = lake.versions_dir(*key.split("|"))
        case "hf_export":
            root = lake.export_dir(CheckpointKey.parse(key))
        case "eval_scores":
            root = lake.scores_dir(CheckpointKey.parse(key), evaluation)
        case _:
            root = lake.reports_dir
    found = list(lake.artifacts_below(root, stage))
    if stage == "hf_export" and (evicted := evicted_export(root)) is not None:
        found.append(evicted)
    if stage == "tokenized_shards":
        # shards do not name the models that read them: only the declarations do
        found = [artifact for artifact in found if artifact.id == current]
    return sorted(found, key=lambda artifact: (artifact.id == current, artifact.manifest.created))
