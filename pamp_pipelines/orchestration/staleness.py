"""Whether the UI shows a partition as stale, found by the very code of Dagster's server."""

from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContext


class _Loading(LoadingContext):
    """Where the resolver keeps what it has read."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._loaders: dict[type, tuple[Any, Any]] = {}

    @property
    def instance(self) -> dg.DagsterInstance:
        return self._instance

    @property
    def loaders(self) -> dict[type, tuple[Any, Any]]:
        return self._loaders


def staleness(instance: dg.DagsterInstance, graph: Any) -> CachingStaleStatusResolver:
    """Answers for the instance as it is now; what it has answered once it does not look at again."""
    return CachingStaleStatusResolver(instance, graph, _Loading(instance))


def is_stale(instance: dg.DagsterInstance, graph: Any, asset: dg.AssetKey, partition: str | None) -> bool:
    """Whether a materialised partition is shown as stale."""
    return staleness(instance, graph).get_status(asset, partition) is StaleStatus.STALE
