"""Tags of runs, by which the UI's list of runs is filtered."""

from collections.abc import Mapping

import dagster as dg

from pamp_pipelines.lake.producer import producer
from pamp_pipelines.lake.store import CheckpointKey

_DIMENSIONS = {
    "raw_corpus": ("corpus",),
    "tokenized_shards": ("corpus", "model"),
    "megatron_checkpoint": ("model",),
    "pretrained_checkpoint": ("model", "training_config"),
}
"""Parts of the partition key by asset."""


def tag_run(context: dg.AssetExecutionContext, tags: Mapping[str, str]) -> None:
    """Add tags to the running run, and the commit of the code."""
    commit = producer().get("git_commit")
    context.instance.add_run_tags(context.run.run_id, {**tags, **({"commit": str(commit)} if commit else {})})


def partition_tags(asset: str, partition: str | None) -> dict[str, str]:
    """What a run of an asset works on.

    Args:
        asset: key, with slashes.
        partition: its key; None for an asset without partitions.

    Raises:
        InputError: it is no key of a checkpoint.
    """
    stage, parts = asset.partition("/")[0], (partition or "").split("|")
    if partition is not None and stage in ("hf_export", "eval_scores"):
        key = CheckpointKey.parse(partition)
        return {"model": key.model, "training_config": key.training_config, "version": f"v{key.version:04d}"}
    return dict(zip(_DIMENSIONS.get(stage, ()), parts, strict=False))
