"""Tags of runs, by which the UI's list of runs is filtered."""

from collections.abc import Mapping

import dagster as dg

from pamp_pipelines.lake.producer import producer
from pamp_pipelines.lake.store import CheckpointKey


def tag_run(context: dg.AssetExecutionContext, tags: Mapping[str, str]) -> None:
    """Add tags to the running run, and the commit of the code."""
    commit = producer().get("git_commit")
    context.instance.add_run_tags(context.run.run_id, {**tags, **({"commit": str(commit)} if commit else {})})


def checkpoint_tags(key: CheckpointKey) -> dict[str, str]:
    return {"model": key.model, "training_config": key.training_config, "version": f"v{key.version:04d}"}
