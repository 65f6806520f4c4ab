"""Partitions of the assets and the lineage between their keys.

Multi-dimensional keys join the dimensions in alphabetical order of their names: ``corpus|model``, and
``model|training_config``, which is why the second dimension is not called ``config``.
"""

import warnings
from dataclasses import dataclass

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.row_files import held_out_corpus, is_held_out

CHECKPOINT_PARTITIONS = "checkpoint"
"""Name of the dynamic partitions; it is global in a Dagster instance."""

checkpoints = dg.DynamicPartitionsDefinition(name=CHECKPOINT_PARTITIONS)


@dataclass(frozen=True)
class Partitions:
    """Partitions of one project; keys are the stems of its declaration files, also of broken ones."""

    corpus: dg.StaticPartitionsDefinition
    model: dg.StaticPartitionsDefinition
    training_config: dg.StaticPartitionsDefinition
    corpus_model: dg.MultiPartitionsDefinition
    model_training_config: dg.MultiPartitionsDefinition
    in_shards: dg.PartitionMapping | None
    """From ``corpus`` or ``model`` to ``corpus|model``; None lets Dagster find the shared dimension."""
    in_runs: dg.PartitionMapping | None
    """From ``model`` or ``training_config`` to ``model|training_config``."""
    by_blend: dg.PartitionMapping
    """From ``corpus|model`` to ``model|training_config``: model by identity, corpus to the configs that blend it."""


def partitions(catalog: Catalog) -> Partitions:
    corpora, models, configs = catalog.names("corpus"), catalog.names("model"), catalog.names("training_config")
    corpus, model = dg.StaticPartitionsDefinition(corpora), dg.StaticPartitionsDefinition(models)
    training_config = dg.StaticPartitionsDefinition(configs)
    configs_of_corpus = {
        name: [config for config, declared in catalog.training_configs.items() if name in declared.corpora]
        for name in corpora
    }
    return Partitions(
        corpus=corpus,
        model=model,
        training_config=training_config,
        corpus_model=dg.MultiPartitionsDefinition({"corpus": corpus, "model": model}),
        model_training_config=dg.MultiPartitionsDefinition({"model": model, "training_config": training_config}),
        in_shards=_shared_dimension(corpora, models),
        in_runs=_shared_dimension(models, configs),
        by_blend=_by_blend(configs_of_corpus),
    )


def _shared_dimension(names: list[str], other_names: list[str]) -> dg.AllPartitionMapping | None:
    """Dagster finds the dimension that two assets share by comparing the keys, even where the dimension is named."""
    return dg.AllPartitionMapping() if names == other_names == [] else None


def _by_blend(configs_of_corpus: dict[str, list[str]]) -> dg.MultiPartitionMapping:
    """The one beta API in use: nothing else maps between two grids, and the default finds no upstream at all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Class `MultiPartitionMapping` is currently in beta", dg.BetaWarning)
        return dg.MultiPartitionMapping(
            {
                "model": dg.DimensionPartitionMapping("model", dg.IdentityPartitionMapping()),
                "corpus": dg.DimensionPartitionMapping("training_config", dg.StaticPartitionMapping(configs_of_corpus)),
            }
        )


def dimensions(context: dg.AssetExecutionContext) -> dict[str, str]:
    """The key of a multi-dimensional partition by dimension, in the order of the key.

    A run that was launched with the plain ``dagster/partition`` tag has a ``str`` key without dimensions, so the key is
    always parsed against the definition.
    """
    definition = context.assets_def.partitions_def
    assert isinstance(definition, dg.MultiPartitionsDefinition)
    keys = definition.get_partition_key_from_str(str(context.partition_key)).keys_by_dimension
    return dict(sorted(keys.items()))


def multi_key(**keys: str) -> str:
    """``multi_key(model="a", training_config="b")`` is ``a|b``."""
    return str(dg.MultiPartitionKey(keys))


def shard_pairs(catalog: Catalog) -> list[tuple[str, str]]:
    """(corpus, model) of every declared run, and of held-out text that is scored; sorted: the shards ever needed."""
    sources = {source for evaluation in catalog.evaluations.values() for source in evaluation.data.values()}
    scored = {held_out_corpus(source) for source in sources if is_held_out(source)} & catalog.corpora.keys()
    pairs = catalog.pairs()
    trained = {(corpus, model) for model, config in pairs for corpus in catalog.blend(config)}
    return sorted(trained | {(str(corpus), model) for model, _ in pairs for corpus in scored})
