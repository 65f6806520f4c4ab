"""Writing down in the lake what Dagster is told of a partition, so that a lost home comes back as it was."""

import time

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.data_version import declaration_hash
from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.recorded import Recorded, write_recorded
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.orchestration.declarations import ASSETS, declared_of
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
    """Write down that the running step materialises this artifact; a lake that cannot be written to is only warned of.

    Args:
        asset: key, with slashes.
        artifact: what is reported.
    """
    context = dg.AssetExecutionContext.get()
    pamp = context.resources.pamp
    partition = str(context.partition_key) if context.has_partition_key else None
    recorded = Recorded(
        id=artifact.id,
        content=artifact.content,
        at=time.time(),
        code_version=str(context.assets_def.get_asset_spec(asset_key(asset)).code_version),
        declarations=declared_versions(pamp.catalog, asset, partition),
    )
    try:
        write_recorded(Lake(pamp.project.lake), asset, partition, recorded)
    except (OSError, PampError) as error:
        context.log.warning(f"a lost Dagster home would not show this materialisation as it is: {error}")
