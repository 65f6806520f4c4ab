"""Writing down in the lake what Dagster is told of a partition, so that a lost home comes back as it was."""

import time

import dagster as dg
from dagster._core.definitions.data_version import extract_data_version_from_entry
from dagster._core.execution.context.system import StepExecutionContext

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.data_version import declaration_hash
from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.recorded import Recorded, write_recorded
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.orchestration.declarations import ASSETS, declared_of, observe, reports
from pamp_pipelines.orchestration.outage import is_outage
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.versions import asset_key

READS = {
    "raw_corpus": ("corpus",),
    "tokenized_shards": ("corpus", "model"),
    "megatron_checkpoint": ("model",),
    "pretrained_checkpoint": ("model", "training_config"),
}
"""Kinds of the declarations that an asset depends on; their names make its partition key, in this order."""


def declared_versions(catalog: Catalog, asset: str, partition: str | None) -> dict[str, dict[str, str]]:
    """Data versions, as they are on disk, of the declarations that a partition depends on.

    Returns:
        asset of the declaration -> its name -> data version; without those that are not declared.
    """
    if asset not in READS:
        return {}
    hashes = {(kind, name): declaration_hash(declared) for kind, name, declared in declared_of(catalog)}
    named = zip(READS[asset], (partition or "").split("|"), strict=False)
    return {ASSETS[kind]: {name: hashes[kind, name]} for kind, name in named if (kind, name) in hashes}


def record(asset: str, artifact: Artifact) -> None:
    """Write down in the lake, and for Dagster, of which declarations the running step materialises this artifact.

    A lake that cannot be written to is only warned of.

    Args:
        asset: key, with slashes.
        artifact: what is reported.
    """
    context = dg.AssetExecutionContext.get()
    pamp = context.resources.pamp
    partition = str(context.partition_key) if context.has_partition_key else None
    declarations = declared_versions(pamp.catalog, asset, partition)
    _stamp(context, pamp, declarations)
    recorded = Recorded(
        id=artifact.id,
        content=artifact.content,
        at=time.time(),
        code_version=str(context.assets_def.get_asset_spec(asset_key(asset)).code_version),
        declarations=declarations,
    )
    try:
        write_recorded(Lake(pamp.project.lake), asset, partition, recorded)
    except (OSError, PampError) as error:
        context.log.warning(f"a lost Dagster home would not show this materialisation as it is: {error}")


def _stamp(context: dg.AssetExecutionContext, pamp: ProjectResource, declarations: dict[str, dict[str, str]]) -> None:
    """Let Dagster's provenance name the declarations that the step has read.

    It has looked them up as the step began, and knows an edit only when the sensor has seen it, seconds later: a launch
    in between would be shown as stale, though made of what is declared. While the database is away it stays so: that
    must not end a training.
    """
    read = {(dg.AssetKey(asset), name): v for asset, versions in declarations.items() for name, v in versions.items()}
    step, instance = context.op_execution_context.get_step_execution_context(), context.instance
    try:
        missed = {one for one, version in read.items() if _looked_up(step, *one) != version}
        for kind, name, declared in declared_of(pamp.catalog):
            if (dg.AssetKey(ASSETS[kind]), name) in missed:
                for report in reports(pamp.catalog, kind, name, declared):
                    instance.report_runless_asset_event(report)
        for key, _ in missed:
            step.wipe_input_asset_version_info(key)
            step.maybe_fetch_and_get_input_asset_version_info(key)
        if missed:  # and what was edited again since
            observe(instance, ProjectResource(root=pamp.root).catalog, instance.report_runless_asset_event)
    except Exception as error:
        if not is_outage(error):
            raise


def _looked_up(step: StepExecutionContext, key: dg.AssetKey, name: str) -> str | None:
    """Data version that the step's provenance stands for: the partition's last one up to the event that it names."""
    found = step.maybe_fetch_and_get_input_asset_version_info(key)
    if found is None or found.storage_id is None:
        return None
    record = step.instance.get_latest_data_version_record(key, True, name, before_cursor=found.storage_id + 1)
    version = extract_data_version_from_entry(record.event_log_entry) if record else None
    return version.value if version else None
