"""Which shards are ever needed."""

from dataclasses import replace

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.orchestration.partitions import shard_pairs
from pamp_pipelines.project import Project


def test_shards_are_needed_for_runs_and_for_held_out_text_that_is_scored(tiny_project: Project) -> None:
    catalog = load_catalog(tiny_project)
    config = catalog.training_configs["both"].model_copy(update={"corpora": {"plays": 1.0}})
    perplexity = catalog.evaluations["perplexity"]
    catalog = replace(catalog, training_configs={"one": config}, evaluations={"mine": perplexity})
    models = sorted({model for model, _ in catalog.pairs()})
    assert shard_pairs(catalog) == [("plays", model) for model in models]
    elsewhere = perplexity.model_copy(update={"data": {"heldout_perplexity": "held_out:sonnets"}})
    catalog = replace(catalog, evaluations={"mine": elsewhere})
    assert shard_pairs(catalog) == [(corpus, model) for corpus in ("plays", "sonnets") for model in models]
