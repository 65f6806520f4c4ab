"""`raw_corpus`: what the declared sources hold, counted and hashed."""

import dagster as dg

from pamp_pipelines.corpus.job import STAGE_VERSION, corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.declarations import ASSETS
from pamp_pipelines.orchestration.details import corpus_details
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import Partitions
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.stage import stage


def raw_corpus_asset(catalog: Catalog, partitions: Partitions) -> dg.AssetsDefinition:
    @dg.asset(
        partitions_def=partitions.corpus,
        deps=[ASSETS["corpus"]],
        group_name="data",
        kinds={"python", "file"},
        owners=owners(catalog.corpora.values()),
        check_specs=check_specs("raw_corpus", partitions.corpus),
        code_version=str(STAGE_VERSION),
        metadata=code_references(catalog, "corpus"),
    )
    def raw_corpus(context: dg.AssetExecutionContext, pamp: ProjectResource) -> dg.MaterializeResult:
        """The text of a declared corpus, as it lies in its sources.

        Nothing is copied: every source file is read once, its documents are counted and its bytes are hashed. The
        result is the identity that the shards, and through them every trained model, can be traced back to.
        """
        with stage(context, "raw_corpus") as on_event:
            artifact = scan_corpus(corpus_job(pamp.catalog, pamp.lake, context.partition_key), on_event)
            return result(artifact, corpus_details(artifact))

    return raw_corpus
