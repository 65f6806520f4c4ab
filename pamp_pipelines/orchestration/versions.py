"""What Dagster has recorded about the content of a partition."""

import dagster as dg

DATA_VERSION_TAG = "dagster/data_version"


def asset_key(asset: str) -> dg.AssetKey:
    """``eval_scores/math`` as Dagster's key."""
    return dg.AssetKey(asset.split("/"))


def recorded_version(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> str | None:
    """Data version of the latest materialisation; None when there is none."""
    return next(iter(recorded_versions(instance, asset, partition, limit=1)), None)


def recorded_versions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None, *, limit: int = 1000
) -> list[str | None]:
    """Data versions of the materialisations, the latest first."""
    wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition is not None else None)
    records = instance.fetch_materializations(wanted, limit=limit).records
    made = [record.asset_materialization for record in records]
    return [(one.tags or {}).get(DATA_VERSION_TAG) for one in made if one is not None]


def observed_version(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str) -> str | None:
    """Data version of the latest observation; None when there is none."""
    wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition])
    records = instance.fetch_observations(wanted, limit=1).records
    if not records or records[0].asset_observation is None:
        return None
    return records[0].asset_observation.tags.get(DATA_VERSION_TAG)
