"""Reporting the checks of an artifact outside a run, as often as need be."""

from typing import Any

import dagster as dg
import sqlalchemy
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.legacy_storage import LegacyEventLogStorage

from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.orchestration.checks import CHECKS, check_evaluations
from pamp_pipelines.orchestration.versions import asset_key


def report_checks(instance: dg.DagsterInstance, asset: str, partition: str | None, manifest: Manifest) -> None:
    """Report the verdicts of a manifest for the newest materialisation of the partition.

    Dagster keeps one row for a run, check and partition, and has no run here: a second evaluation outside runs fails on
    the row of the first (dagster 1.13, ``_store_runless_asset_check_evaluation``), so that row goes.
    """
    for evaluation in check_evaluations(instance, asset, partition, manifest):
        if partition is not None:
            _forget(instance, evaluation)
        instance.report_runless_asset_event(evaluation)


def lacks_checks(instance: dg.DagsterInstance, asset: str, partition: str | None) -> bool:
    """Whether a check of the newest materialisation of the partition was never reported.

    Those of a run are the run's to report: what it did not get to shows as the run that failed.
    """
    names = {check.name for check in CHECKS[asset.partition("/")[0]]}
    wanted = dg.AssetRecordsFilter(asset_key(asset), asset_partitions=None if partition is None else [partition])
    made = instance.fetch_materializations(wanted, limit=1).records
    if not names or not made or made[0].run_id:
        return False
    row = AssetCheckExecutionsTable.c
    with _storage(instance).index_connection() as connection:
        found = connection.execute(
            sqlalchemy.select(row.check_name).where(
                row.asset_key == asset_key(asset).to_string(),
                row.check_name.in_(names),
                row.materialization_event_storage_id == made[0].storage_id,
            )
        )
        return bool(names - {name for (name,) in found})


def _forget(instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation) -> None:
    row = AssetCheckExecutionsTable.c
    with _storage(instance).index_connection() as connection:
        connection.execute(
            sqlalchemy.delete(AssetCheckExecutionsTable).where(
                row.asset_key == evaluation.asset_key.to_string(),
                row.check_name == evaluation.check_name,
                row.partition == evaluation.partition,
                row.run_id == "",
            )
        )


def _storage(instance: dg.DagsterInstance) -> SqlEventLogStorage:
    storage: Any = instance.event_log_storage
    if isinstance(storage, LegacyEventLogStorage):  # one storage for all, as PostgreSQL's
        storage = storage._storage.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    return storage
