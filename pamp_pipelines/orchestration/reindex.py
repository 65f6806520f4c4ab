"""Rebuild a lost Dagster home from the lake: manifests are the truth, Dagster's records only an index of it.

Everything is reported as runless events, in the order in which it happened: materialisations with the metadata and
checks that their runs had, the versions of the declarations that they were made of, points of the loss curves as
observations, checkpoints as partitions. Runs, their logs and their times are gone with the home; each artifact shows
when it was made as ``created``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.data_version import declaration_hash
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.events import event as lake_event
from pamp_pipelines.lake.publish import lock
from pamp_pipelines.lake.store import Lake, LeftOut
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.check_reports import lacks_checks, report_checks
from pamp_pipelines.orchestration.checkpoints import announce_unknown
from pamp_pipelines.orchestration.checks import check_results
from pamp_pipelines.orchestration.damage import leaving_out
from pamp_pipelines.orchestration.declarations import ASSETS, Report, declared_of, observe, reports
from pamp_pipelines.orchestration.details import details
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.metadata import all_metadata
from pamp_pipelines.orchestration.partitions import CHECKPOINT_PARTITIONS
from pamp_pipelines.orchestration.provenance import provenance_tags
from pamp_pipelines.orchestration.recording import READS
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.survey import Entry, Survey
from pamp_pipelines.orchestration.values import to_metadata
from pamp_pipelines.orchestration.versions import (
    DATA_VERSION_TAG,
    asset_key,
    observed_version,
    recorded_version,
    recorded_versions,
)
from pamp_pipelines.project import Project
from pamp_pipelines.training.metrics import read_metrics

_REPORTS = (dg.AssetObservation, dg.AssetMaterialization)

CURVE_POINTS = 100
"""Observations of one training run; the full curve is in metrics.jsonl."""


@dataclass(frozen=True)
class Reported:
    """A partition of an asset, and how many artifacts of it were reported."""

    asset: str
    partition: str | None
    artifacts: int


@dataclass(frozen=True)
class Reindexed:
    """What ``reindex`` did.

    Attributes:
        reported: partitions that Dagster did not know, or not as they are.
        left_out: what of the lake cannot be shown, by path: why.
    """

    reported: list[Reported] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=dict)


def reindex(project: Project, on_event: OnEvent = ignore) -> Reindexed:
    """Report whatever the lake holds and the instance in DAGSTER_HOME does not know; a second call finds nothing.

    What is damaged, half copied or of another program is left out and named. A second process waits for the first: two
    would report the same twice.

    Args:
        project: whose lake and instance.
        on_event: gets ``progress`` with asset and partition, and ``warning`` when it waits.

    Raises:
        DeclarationError: the declarations are not valid.
    """
    definitions = build_definitions(project)
    home = project.dagster_home.expanduser().resolve()
    message = f"{home}: another `pamp reindex` is rebuilding it; waiting until that one has ended"
    with (
        open_instance(project) as instance,
        lock(home / "reindex", lambda _: on_event(lake_event("warning", message=message))),
    ):
        return _Indexer(project, instance, definitions, on_event).run()


class _Indexer:
    def __init__(
        self, project: Project, instance: dg.DagsterInstance, definitions: dg.Definitions, on_event: OnEvent
    ) -> None:
        pamp = ProjectResource(root=str(project.root))
        self._catalog: Catalog = pamp.catalog
        self._lake: Lake = pamp.lake
        self._instance = instance
        self._graph = definitions.resolve_asset_graph()
        self._on_event = on_event
        self._left_out: LeftOut = {}
        self._reported: defaultdict[tuple[str, str | None], set[str]] = defaultdict(set)
        """Contents that were reported, by asset and partition."""
        self._unjudged: list[Entry] = []
        """What was reported by a process that ended before it reported the checks."""

    def run(self) -> Reindexed:
        announced = announce_unknown(self._instance, self._lake)
        self._left_out.update(announced.left_out)
        self._reported.update({("checkpoint", key): {key} for key in announced.added})
        checkpoints = sorted(self._instance.get_dynamic_partitions(CHECKPOINT_PARTITIONS))
        partitions = list(Survey(self._catalog, self._lake, checkpoints, self._left_out).partitions())
        self._remember(entry for entries in partitions for entry in entries)
        unknown = sorted(self._unknown(partitions), key=lambda entry: entry.order)
        for entry in unknown:
            self._report(entry)
        self._settle(partitions)
        self._judge()
        self._observe_declarations()
        return Reindexed([Reported(*key, len(found)) for key, found in self._reported.items()], self._left_out)

    def _remember(self, entries: Iterable[Entry]) -> None:
        self._by_content: dict[tuple[str, str | None, str], Entry] = {}
        self._held: set[tuple[str, str | None]] = set()
        self._bygone: set[tuple[str, str | None]] = set()
        """Partitions of which a version was reported that the lake does not have any more."""
        self._shards: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """Partitions of shards by model and id."""
        for entry in entries:
            self._by_content[entry.asset, entry.partition, entry.artifact.content] = entry
            self._held.add((entry.asset, entry.partition))
            if entry.asset == "tokenized_shards":
                model = str(entry.partition).partition("|")[2]
                self._shards[model, entry.artifact.id].append(str(entry.partition))

    def _unknown(self, partitions: Iterable[list[Entry]]) -> Iterator[Entry]:
        """What Dagster has no materialisation of, and what is not its latest of the partition and should be."""
        for entries in partitions:
            *earlier, last = entries
            known = recorded_versions(self._instance, asset_key(last.asset), last.partition)
            if known and known[0] == last.artifact.content:
                if lacks_checks(self._instance, last.asset, last.partition):
                    self._unjudged.append(last)
                continue
            yield from (entry for entry in earlier if entry.artifact.content not in known)
            yield last

    def _settle(self, partitions: Iterable[list[Entry]]) -> None:
        """Report once more what was the latest, and is not because an older one had to be shown as an input."""
        for *_, last in partitions:
            key = last.asset, last.partition
            if key not in self._reported and key not in self._bygone:
                continue
            if recorded_version(self._instance, asset_key(last.asset), last.partition) != last.artifact.content:
                self._report(last, settling=True)

    def _judge(self) -> None:
        for entry in self._unjudged:
            if (entry.asset, entry.partition) not in self._reported:
                with leaving_out(self._left_out, entry.artifact.path):
                    report_checks(self._instance, entry.asset, entry.partition, entry.artifact.manifest)
                    self._reported[entry.asset, entry.partition].add(entry.artifact.content)

    def _report(self, entry: Entry, *, settling: bool = False) -> None:
        """Report an artifact after what it was made of; ``settling``, only the artifact."""
        stale = set(self._inputs(entry, settling))
        stale |= set(self._declared(entry))  # after the inputs, which may have had other declarations
        node = self._graph.get(asset_key(entry.asset))
        events: list[dg.AssetObservation | dg.AssetMaterialization] = []
        with leaving_out(self._left_out, entry.artifact.path):
            check_results(entry.asset, entry.artifact.manifest)  # before anything is reported of a damaged one
            shown = self._details(entry.artifact)
            if entry.asset == "pretrained_checkpoint":
                points = curve(entry.artifact)
                events += [dg.AssetObservation(node.key, partition=entry.partition, metadata=p) for p in points]
            recorded = entry.recorded
            parents = [parent for parent in node.parent_keys if parent.to_user_string() not in stale]
            tags = provenance_tags(
                self._instance,
                entry.artifact.content,
                recorded.code_version if recorded else str(node.code_version),
                parents,
            )
            tags |= _dimension_tags(node.partitions_def, entry.partition)
            metadata = all_metadata(entry.artifact, shown)
            events.append(dg.AssetMaterialization(node.key, partition=entry.partition, metadata=metadata, tags=tags))
        if not events:
            return
        self._on_event(lake_event("progress", asset=entry.asset, partition=entry.partition))
        self._reported[entry.asset, entry.partition].add(entry.artifact.content)
        report = self._instance.report_runless_asset_event
        for one in events:
            report(one)
        report_checks(self._instance, entry.asset, entry.partition, entry.artifact.manifest)

    def _details(self, artifact: Artifact) -> dict[str, Any]:
        """Nothing where a file cannot be read that they are made from: the manifest still tells what it was."""
        with leaving_out(self._left_out, f"{artifact.path}, shown without its details"):
            return details(artifact)
        return {}

    def _declared(self, entry: Entry) -> Iterator[str]:
        """See to it that the declarations are reported as the artifact had them; yields those that it had otherwise."""
        if entry.asset not in READS:
            return
        if entry.in_force:
            self._observe_declarations()
        elif entry.recorded is not None:
            for asset, versions in entry.recorded.declarations.items():
                for name, version in versions.items():
                    self._observe(asset, name, version)
        else:
            yield from (ASSETS[kind] for kind in READS[entry.asset])

    def _observe_declarations(self) -> None:
        observe(self._instance, self._catalog, self._instance.report_runless_asset_event)

    def _observe(self, asset: str, name: str, version: str) -> None:
        """Report a version that a declaration had; of what is no longer declared so, nothing else is known."""
        if observed_version(self._instance, dg.AssetKey(asset), name) == version:
            return
        events: list[Report] = [one(asset, partition=name, tags={DATA_VERSION_TAG: version}) for one in _REPORTS]
        for kind, declared_name, declared in declared_of(self._catalog):
            if (ASSETS[kind], declared_name, declaration_hash(declared)) == (asset, name, version):
                events = reports(self._catalog, kind, name, declared)
        for one in events:
            self._instance.report_runless_asset_event(one)

    def _inputs(self, entry: Entry, settling: bool) -> Iterator[str]:
        """See to it that the inputs are reported as the artifact had them; yields those that it had otherwise."""
        for asset, partition, content in self._made_of(entry):
            if recorded_version(self._instance, asset_key(asset), partition) == content:
                continue
            if settling or asset == "checkpoint":
                yield asset
            elif source := self._by_content.get((asset, partition, content)):
                self._report(source)
            elif (asset, partition) in self._held:
                # replaced since: of what was there before, only the version is known
                self._bygone.add((asset, partition))
                tags = {DATA_VERSION_TAG: content}
                event = dg.AssetMaterialization(asset_key(asset), partition=partition, tags=tags)
                self._instance.report_runless_asset_event(event)

    def _made_of(self, entry: Entry) -> Iterator[tuple[str, str, str]]:
        """Asset, partition and content of the inputs that the manifest names.

        Those of the leaderboard are hundreds: they are as its time had them.
        """
        key = entry.partition or ""
        for ref in entry.artifact.manifest.inputs:
            match entry.asset.partition("/")[0], ref.kind:
                case "tokenized_shards", "raw_corpus":
                    yield ref.kind, key.partition("|")[0], ref.content
                case "pretrained_checkpoint", "megatron_checkpoint":
                    yield ref.kind, key.partition("|")[0], ref.content
                case "pretrained_checkpoint", "tokenized_shards":  # the manifest names no corpus
                    for shards in self._shards[key.partition("|")[0], ref.id]:
                        yield ref.kind, shards, ref.content
                case ("hf_export", "checkpoint") | ("eval_scores", "hf_export"):
                    yield ref.kind, key, ref.content


def curve(artifact: Artifact, points: int = CURVE_POINTS) -> list[dict[str, Any]]:
    """Entries of a training run's metrics.jsonl as metadata, evenly spaced, the last one among them."""
    entries = read_metrics(artifact.path / "metrics.jsonl")
    if len(entries) > points:
        entries = [entries[round(n * (len(entries) - 1) / (points - 1))] for n in range(points)]
    return [to_metadata(entry) for entry in entries]


def _dimension_tags(definition: dg.PartitionsDefinition | None, partition: str | None) -> dict[str, str]:
    """A tag for each dimension of a key, as the events of runs have them."""
    if not isinstance(definition, dg.MultiPartitionsDefinition) or partition is None:
        return {}
    keys = definition.get_partition_key_from_str(partition).keys_by_dimension
    return {f"dagster/partition/{dimension}": key for dimension, key in keys.items()}
