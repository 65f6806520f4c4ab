"""`corpus_declaration`, `model_declaration`, `training_declaration`: the YAML files at the roots of the graph."""

from collections.abc import Iterable

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog, folder_of
from pamp_pipelines.declarations.corpus import Corpus
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.declarations import ASSETS
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import Partitions

_HOW = (
    "Observed, not materialised: the sensor `watch_declarations` reads the files and reports a new data version when "
    "one has changed in what it decides. Each partition that reads it is then shown as stale."
)


def declaration_specs(catalog: Catalog, partitions: Partitions) -> list[dg.AssetSpec]:
    return [
        _spec(catalog, "corpus", partitions.corpus, catalog.corpora.values()),
        _spec(catalog, "model", partitions.model, catalog.models.values()),
        _spec(catalog, "training_config", partitions.training_config, catalog.training_configs.values()),
    ]


def _spec(
    catalog: Catalog, kind: str, keys: dg.PartitionsDefinition, declared: Iterable[Corpus | Model | TrainingConfig]
) -> dg.AssetSpec:
    folder = folder_of(catalog.project, kind).relative_to(catalog.project.root)
    return dg.AssetSpec(
        ASSETS[kind],
        partitions_def=keys,
        group_name="declarations",
        kinds={"yaml"},
        owners=owners(declared),
        description=f"A YAML file in `{folder}`; its name is the partition key.\n\n{broken_note(catalog, kind)}{_HOW}",
        metadata=code_references(catalog, kind),
    )


def broken_note(catalog: Catalog, kind: str, name: str | None = None) -> str:
    """Markdown: what was wrong with files of a kind, or with the one of a name, when the definitions were loaded."""
    problems = [
        problem
        for (of_kind, of_name), found in catalog.broken.items()
        if of_kind == kind and name in (None, of_name)
        for problem in found
    ]
    if not problems:
        return ""
    lines = "\n".join(f"* `{problem}`" for problem in problems)
    return f"**Broken when the definitions were loaded:**\n\n{lines}\n\n"
