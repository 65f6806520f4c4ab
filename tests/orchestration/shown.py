"""Everything that the UI shows of a project, as plain values to compare."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster._core.event_api import PartitionKeyFilter

from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.staleness import staleness
from pamp_pipelines.project import Project

Shown = dict[str, Any]


def shown(project: Project) -> dict[str, Shown]:
    """By asset: the newest materialisation of each partition and of all, its checks, whether it is stale and why."""
    graph = build_definitions(project).resolve_asset_graph()
    with open_instance(project) as instance:
        resolver = staleness(instance, graph)
        found: dict[str, Shown] = {"partitions": {"checkpoint": instance.get_dynamic_partitions("checkpoint")}}
        for key in sorted(graph.get_all_asset_keys()):
            node = graph.get(key)
            filled: list[str | None] = [None]
            if node.partitions_def is not None:
                keys = node.partitions_def.get_partition_keys(dynamic_partitions_store=instance)
                filled = sorted(instance.get_materialized_partitions(key) & set(keys))
            declared = key.path[-1].endswith("_declaration")  # the lake does not know which was edited last
            newest = instance.get_latest_materialization_event(key)
            last = newest.asset_materialization.partition if newest and newest.asset_materialization else None
            found[key.to_user_string()] = {
                "newest": None if declared or last not in filled else last,
                **{
                    str(partition): {
                        **_newest(instance, key, partition, node.is_external),
                        "checks": {c.name: _check(instance, c, key, partition) for c in sorted(node.check_keys)},
                        "stale": resolver.get_status(key, partition).value,
                        "causes": sorted(
                            f"{cause.reason} {cause.dependency_asset_key} {cause.dependency_partition_key}"
                            for cause in resolver.get_stale_causes(key, partition)
                        ),
                    }
                    for partition in filled
                },
            }
        return found


def _records(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> list[dg.EventLogRecord]:
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition is not None else None)
    return list(instance.fetch_materializations(wanted, limit=1).records)


def _newest(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None, external: bool) -> Shown:
    for record in _records(instance, key, partition):
        made = record.asset_materialization
        assert made is not None
        tags = {
            name: value
            for name, value in (made.tags or {}).items()
            if "event_pointer" not in name and "input_data_version" not in name
        }
        return {"tags": tags, "metadata": {name: value.value for name, value in made.metadata.items()}}
    return {}


def _check(instance: dg.DagsterInstance, check: dg.AssetCheckKey, key: dg.AssetKey, partition: str | None) -> Shown:
    """Status, words, and whether it is of the newest materialisation of the partition."""
    history = instance.event_log_storage.get_asset_check_execution_history(
        check, limit=1, partition_filter=PartitionKeyFilter(key=partition)
    )
    if not history:
        return {}
    (record,) = history
    evaluation = record.evaluation
    assert evaluation is not None
    target = evaluation.target_materialization_data
    return {
        "status": record.status.value,
        "description": evaluation.description,
        "severity": evaluation.severity.value,
        "blocking": evaluation.blocking,
        "of_newest": target is not None and target.storage_id == _records(instance, key, partition)[0].storage_id,
    }


def differences(before: dict[str, Shown], after: dict[str, Shown]) -> dict[str, tuple[Any, Any]]:
    """What is not the same, by its path."""
    one, other = dict(_leaves(before)), dict(_leaves(after))
    return {path: (one.get(path), other.get(path)) for path in one | other if one.get(path) != other.get(path)}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path} / {name}")
    else:
        yield path, value
