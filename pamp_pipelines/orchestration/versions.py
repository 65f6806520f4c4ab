"""What Dagster has recorded about the content of a partition."""

import dagster as dg

DATA_VERSION_TAG = "dagster/data_version"


def asset_key(asset: str) -> dg.AssetKey:
    """``eval_scores/math`` as Dagster's key."""
    return dg.AssetKey(asset.split("/"))


def recorded_version(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> str | None:
    """Data version of the latest materialisation; None when there is none."""
    wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition is not None else None)
    records = instance.fetch_materializations(wanted, limit=1).records
    if not records or records[0].asset_materialization is None:
        return None
    return (records[0].asset_materialization.tags or {}).get(DATA_VERSION_TAG)


def observed_version(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str) -> str | None:
    """Data version of the latest observation; None when there is none."""
    wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition])
    records = instance.fetch_observations(wanted, limit=1).records
    if not records or records[0].asset_observation is None:
        return None
    return records[0].asset_observation.tags.get(DATA_VERSION_TAG)
