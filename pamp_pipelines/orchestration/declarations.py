"""Declarations as Dagster sees them: external assets whose data version is the hash of what they decide.

Description, owners, cron and profile are left out of the hash, so that editing them makes nothing stale.
"""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from pamp_pipelines.declarations.base import Declaration
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.data_version import declaration_hash, relevant
from pamp_pipelines.orchestration.versions import DATA_VERSION_TAG, observed_version

ASSETS = {"corpus": "corpus_declaration", "model": "model_declaration", "training_config": "training_declaration"}
"""Kind of declaration to its asset. Evaluations have none: scores are of immutable checkpoints and stay."""


Report = dg.AssetObservation | dg.AssetMaterialization


def observe(instance: dg.DagsterInstance, catalog: Catalog, emit: Callable[[Report], Any]) -> int:
    """Report each declaration whose hash is not the one that Dagster has observed last; returns how many those are.

    The observation carries the data version that staleness goes by, so it comes first; the materialisation after it
    makes the partition count as filled, as it does for ``checkpoint``.

    Args:
        instance: what has been observed.
        catalog: declarations as they are on disk now.
        emit: gets the observations.
    """
    changed = [
        (kind, name, declared)
        for kind, name, declared in declared_of(catalog)
        if observed_version(instance, dg.AssetKey(ASSETS[kind]), name) != declaration_hash(declared)
    ]
    for kind, name, declared in changed:
        for report in reports(catalog, kind, name, declared):
            emit(report)
    return len(changed)


def reports(catalog: Catalog, kind: str, name: str, declared: Declaration) -> list[Report]:
    """What is reported of a declaration as it is."""
    facts = _facts(catalog, kind, name, declared)
    return [event(ASSETS[kind], partition=name, **facts) for event in (dg.AssetObservation, dg.AssetMaterialization)]


def declared_of(catalog: Catalog) -> Iterator[tuple[str, str, Declaration]]:
    """Kind, name and content of every declaration that has an asset."""
    for kind, declared in (
        ("corpus", catalog.corpora),
        ("model", catalog.models),
        ("training_config", catalog.training_configs),
    ):
        yield from ((kind, name, declaration) for name, declaration in declared.items())


def _facts(catalog: Catalog, kind: str, name: str, declared: Declaration) -> dict[str, Any]:
    return {
        "metadata": {
            "declaration": dg.MetadataValue.json(relevant(declared)),
            "file": dg.MetadataValue.path(str(catalog.file_of(kind, name))),
        },
        "tags": {DATA_VERSION_TAG: declaration_hash(declared)},
    }
