"""`megatron_checkpoint`: where training of a model starts."""

import dagster as dg

from pamp_pipelines.conversion.job import STAGE_VERSION, import_job
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.declarations import ASSETS
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import Partitions
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.stage import stage
from pamp_pipelines.verification.stages import import_and_verify


def megatron_checkpoint_asset(catalog: Catalog, partitions: Partitions) -> dg.AssetsDefinition:
    @dg.asset(
        partitions_def=partitions.model,
        deps=[ASSETS["model"]],
        group_name="model",
        kinds={"huggingface", "megatron", "pytorch"},
        owners=owners(catalog.models.values()),
        check_specs=check_specs("megatron_checkpoint", partitions.model),
        code_version=str(STAGE_VERSION),
        metadata=code_references(catalog, "model"),
    )
    def megatron_checkpoint(context: dg.AssetExecutionContext, pamp: ProjectResource) -> dg.MaterializeResult:
        """A Hugging Face model as a Megatron `torch_dist` checkpoint that loads at any parallel layout.

        Converted tensor by tensor, without building a Megatron model. For a model that starts from scratch it records
        the resolved architecture and the tokenizer, and holds no weights.
        """
        with stage(context, "megatron_checkpoint") as on_event:
            return result(import_and_verify(import_job(pamp.catalog, pamp.lake, context.partition_key), on_event))

    return megatron_checkpoint
