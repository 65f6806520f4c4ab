"""Materialise assets from a program: the same assets, on the same instance, as in the UI, without its daemon.

Runs are executed in this process, one after the other. They are ordinary runs of the instance in DAGSTER_HOME: they
appear in the UI, take slots of the pools, and record the same data versions as a launch from there.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import dagster as dg

from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.store import LeftOut
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.chain import CHAIN, Selection, partitions_of, require_partition, select
from pamp_pipelines.orchestration.checkpoints import announce_unknown
from pamp_pipelines.orchestration.damage import sentences
from pamp_pipelines.orchestration.declarations import observe
from pamp_pipelines.orchestration.events import listener
from pamp_pipelines.orchestration.executor import execute_here
from pamp_pipelines.orchestration.failures import stage_error
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.leftovers import end_leftovers
from pamp_pipelines.orchestration.origin import origin, origin_in
from pamp_pipelines.orchestration.recording import READS
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.staleness import is_stale
from pamp_pipelines.orchestration.uptodate import existing
from pamp_pipelines.orchestration.versions import DATA_VERSION_TAG, asset_key, recorded_version
from pamp_pipelines.project import Project


@dataclass(frozen=True)
class MaterializedPartition:
    """What became of one partition of one asset.

    Attributes:
        asset: key, with slashes.
        partition: key; None for an asset without partitions.
        data_version: hash of the content.
        path: folder of the artifact.
        run_id: run that recorded it; None when it was up to date and nothing ran.
        seconds: time that the run took, 0 when nothing ran.
    """

    asset: str
    partition: str | None
    data_version: str
    path: Path
    run_id: str | None
    seconds: float


def materialize(
    project: Project,
    asset: str | None,
    partition: str | None,
    *,
    all_partitions: bool = False,
    on_event: OnEvent = ignore,
) -> list[MaterializedPartition]:
    """Materialise one partition, all declared partitions of an asset, or the whole chain.

    With ``all_partitions``, what is materialised already from equal inputs is left alone; a partition that is asked for
    by name is always run, which takes moments when its artifact exists.

    Args:
        project: whose assets.
        asset: key with slashes; ``eval_scores`` stands for all evaluations; None for the whole chain, in order.
        partition: key of that asset; needed unless it has none or ``all_partitions`` is set.
        all_partitions: every declared partition; implied by ``asset=None``.
        on_event: gets the stages' events, and ``started`` and ``finished`` with asset, partition and run.

    Raises:
        InputError: no such asset or partition.
        PampError: a stage failed; what it said.
        VerificationFailed: an artifact failed a blocking check.
        KeyboardInterrupt: the run was interrupted; it is recorded as canceled.
    """
    everything = asset is None or all_partitions
    pamp = ProjectResource(root=str(project.root))
    selections = [select(pamp.catalog, name) for name in (CHAIN if asset is None else (asset,))]
    if not everything:
        require_partition(pamp.catalog, pamp.lake, selections[0].stage, partition)
    with open_instance(project) as instance:
        end_leftovers(instance)
        observe(instance, pamp.catalog, instance.report_runless_asset_event)
        runner = _Runner(project, pamp, instance, on_event)
        if everything:
            return [done for selection in selections for done in runner.bring_up_to_date(selection)]
        if selections[0].stage in ("hf_export", "eval_scores"):
            announce_unknown(instance, pamp.lake)  # it may have come with a copied or a remote lake
        return runner.run(selections[0], partition)


@dataclass(frozen=True)
class _Runner:
    project: Project
    pamp: ProjectResource
    instance: dg.DagsterInstance
    on_event: OnEvent

    @cached_property
    def _job(self) -> dg.JobDefinition:
        return build_definitions(self.project).resolve_implicit_global_asset_job_def()

    def bring_up_to_date(self, selection: Selection) -> Iterator[MaterializedPartition]:
        """Run those partitions of a step whose artifact or whose record in Dagster is missing, differs or is stale."""
        left_out: LeftOut = {}
        if selection.stage in ("hf_export", "eval_scores"):
            announce_unknown(self.instance, self.pamp.lake)
        partitions = partitions_of(self.pamp.catalog, self.pamp.lake, selection.stage, left_out)
        for problem in sentences(left_out) if selection.stage == "hf_export" else ():
            self.on_event(event("warning", message=f"passed over: {problem}"))
        for partition in partitions:
            yield from self._recorded(selection, partition) or self.run(selection, partition)

    def _recorded(self, selection: Selection, partition: str | None) -> list[MaterializedPartition] | None:
        """What is there already, if Dagster has recorded the very same content, of the declarations as they are."""
        artifacts = existing(self.pamp.catalog, self.pamp.lake, selection, partition)
        if artifacts is None:
            return None
        pairs = list(zip(selection.assets, artifacts, strict=True))
        if any(recorded_version(self.instance, asset_key(a), partition) != found.content for a, found in pairs):
            return None
        graph = self._job.asset_layer.asset_graph
        if selection.stage in READS and is_stale(self.instance, graph, asset_key(selection.stage), partition):
            return None  # an edit that leaves the artifact as it is; a run finds it and says so to Dagster
        return [MaterializedPartition(a, partition, found.content, found.path, None, 0.0) for a, found in pairs]

    def run(self, selection: Selection, partition: str | None) -> list[MaterializedPartition]:
        """One ordinary run of the instance, executed here."""
        if not selection.assets:
            return []
        start = time.monotonic()
        run_id = str(uuid.uuid4())
        self.on_event(event("started", asset=selection.stage, partition=partition))
        token, launched = listener.set(self.on_event), origin.set(origin_in(self.project, self._job.name))
        try:
            outcome = execute_here(
                self._job,
                [asset_key(asset) for asset in selection.assets],
                partition,
                self.instance,
                run_id,
                {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
        except dg.DagsterExecutionInterruptedError as error:
            raise KeyboardInterrupt from error
        except (dg.Failure, dg.DagsterError) as error:
            raise stage_error(error, self.instance, run_id) from error
        finally:
            listener.reset(token)
            origin.reset(launched)
        seconds = time.monotonic() - start
        self.on_event(event("finished", asset=selection.stage, partition=partition, seconds=seconds))
        made = {e.asset_key: e.materialization for e in outcome.get_asset_materialization_events()}
        return [
            MaterializedPartition(
                asset=asset,
                partition=partition,
                data_version=(made[asset_key(asset)].tags or {})[DATA_VERSION_TAG],
                path=_path(made[asset_key(asset)].metadata),
                run_id=run_id,
                seconds=seconds,
            )
            for asset in selection.assets
        ]


def _path(metadata: Mapping[str, dg.MetadataValue]) -> Path:
    """The artifact's folder on this machine."""
    return Path(str((metadata.get("staged") or metadata["dagster/uri"]).value))
