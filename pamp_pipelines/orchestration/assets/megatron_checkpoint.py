"""`megatron_checkpoint`: where training of a model starts."""

import dagster as dg
from pydantic import Field

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


class Importing(dg.Config):
    """Settings of one launch."""

    profile: str | None = Field(
        default=None,
        description="Where the checkpoint's files are written: the name of a compute profile in resources/. A "
        "cluster's makes an array job of nodes x processes_per_node tasks. Default: processes of this machine.",
    )


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
    def megatron_checkpoint(
        context: dg.AssetExecutionContext, config: Importing, pamp: ProjectResource
    ) -> dg.MaterializeResult:
        """A Hugging Face model as a Megatron `torch_dist` checkpoint that loads at any parallel layout.

        Converted tensor by tensor, without building a Megatron model. For a model that starts from scratch it records
        the resolved architecture and the tokenizer, and holds no weights.
        """
        with stage(context, "megatron_checkpoint") as on_event:
            profile = pamp.catalog.profile(config.profile) if config.profile else None
            job = import_job(pamp.catalog, pamp.lake, context.partition_key)
            return result(import_and_verify(job, on_event, profile=profile))

    return megatron_checkpoint
