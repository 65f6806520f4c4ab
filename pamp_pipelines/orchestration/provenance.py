"""The tags by which Dagster knows what a materialisation was made of, for one that it did not see happen.

A run gets them from Dagster itself (``_build_data_version_tags`` in dagster/_core/execution/plan/execute_step.py).
"""

from collections.abc import Collection

import dagster as dg

from pamp_pipelines.orchestration.versions import DATA_VERSION_TAG

CODE_VERSION_TAG = "dagster/code_version"
USER_PROVIDED_TAG = "dagster/data_version_is_user_provided"
INPUT_VERSION_TAG = "dagster/input_data_version"
INPUT_EVENT_TAG = "dagster/input_event_pointer"


def provenance_tags(
    instance: dg.DagsterInstance, content: str, code_version: str, parents: Collection[dg.AssetKey]
) -> dict[str, str]:
    """Tags of a materialisation.

    Args:
        instance: what has been reported of the inputs so far.
        content: its data version.
        code_version: of the stage that made it.
        parents: assets whose partitions it was made of as they are recorded now; it is stale for those left out.
    """
    tags = {DATA_VERSION_TAG: content, USER_PROVIDED_TAG: "true", CODE_VERSION_TAG: code_version}
    for parent in sorted(parents):
        version, storage_id = _latest(instance, parent)
        tags[f"{INPUT_VERSION_TAG}/{parent.to_user_string()}"] = version
        tags[f"{INPUT_EVENT_TAG}/{parent.to_user_string()}"] = storage_id
    return tags


def _latest(instance: dg.DagsterInstance, asset: dg.AssetKey) -> tuple[str, str]:
    """Data version and storage id of the newest event of an asset, of whichever partition, as a run records them."""
    records = [
        *instance.fetch_materializations(asset, limit=1).records,
        *instance.fetch_observations(asset, limit=1).records,
    ]
    if not records:
        return "INITIAL", "NULL"
    entry = records[0].event_log_entry
    return (entry.tags or {}).get(DATA_VERSION_TAG, "INITIAL"), str(records[0].storage_id)
