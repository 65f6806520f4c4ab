"""`tokenized_shards`: a corpus in the tokens of a model."""

import dagster as dg
from pydantic import Field

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.declarations import ASSETS
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import Partitions, dimensions
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.stage import stage
from pamp_pipelines.orchestration.tags import tag_run
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import STAGE_VERSION, tokenize_job


class Tokenizing(dg.Config):
    """Settings of one launch."""

    profile: str | None = Field(
        default=None,
        description="Where the pieces are made: the name of a compute profile in resources/. A cluster's makes an "
        "array job of nodes x processes_per_node tasks. Default: processes of this machine.",
    )


def tokenized_shards_asset(catalog: Catalog, partitions: Partitions) -> dg.AssetsDefinition:
    @dg.asset(
        partitions_def=partitions.corpus_model,
        deps=[
            dg.AssetDep("raw_corpus", partition_mapping=partitions.in_shards),
            dg.AssetDep(ASSETS["corpus"], partition_mapping=partitions.in_shards),
            dg.AssetDep(ASSETS["model"], partition_mapping=partitions.in_shards),
        ],
        group_name="data",
        kinds={"python", "huggingface", "megatron"},
        owners=owners([*catalog.corpora.values(), *catalog.models.values()]),
        check_specs=check_specs("tokenized_shards", partitions.corpus_model),
        code_version=str(STAGE_VERSION),
        metadata=code_references(catalog, "corpus", "model"),
    )
    def tokenized_shards(
        context: dg.AssetExecutionContext, config: Tokenizing, pamp: ProjectResource
    ) -> dg.MaterializeResult:
        """Training and held-out tokens in Megatron's IndexedDataset format (`.bin` and `.idx`).

        Each document ends with the model's end-of-document token. Held-out documents are chosen by a hash of their
        content, so neither the order nor the layout of the sources moves a document across. Shards are addressed by
        corpus content and tokenizer: models that share a tokenizer share the files.
        """
        corpus, model = dimensions(context).values()
        with stage(context, "tokenized_shards") as on_event:
            profile = pamp.catalog.profile(config.profile) if config.profile else None
            tag_run(context, {"profile": config.profile} if config.profile else {})
            return result(tokenize(tokenize_job(pamp.catalog, pamp.lake, corpus, model), on_event, profile=profile))

    return tokenized_shards
