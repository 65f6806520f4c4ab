"""`hf_export`: a checkpoint as a Hugging Face model."""

import dagster as dg
from pydantic import Field

from pamp_pipelines.conversion.job import STAGE_VERSION
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.evaluation.export_cache import keep_within_budget
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.automation import AFTER_PASSED_CHECKS
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import checkpoints
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.stage import stage
from pamp_pipelines.training.resolve import export_job
from pamp_pipelines.verification.loss import loss_job
from pamp_pipelines.verification.stages import export_and_verify


class Exporting(dg.Config):
    """Settings of one launch."""

    profile: str | None = Field(
        default=None,
        description="Where the weights are written: the name of a compute profile in resources/. A cluster's makes an "
        "array job of nodes x processes_per_node tasks. Default: processes of this machine.",
    )


def hf_export_asset(catalog: Catalog) -> dg.AssetsDefinition:
    @dg.asset(
        partitions_def=checkpoints,
        deps=["checkpoint"],
        group_name="evaluation",
        kinds={"huggingface", "pytorch"},
        owners=owners(catalog.models.values()),
        check_specs=check_specs("hf_export", checkpoints),
        automation_condition=AFTER_PASSED_CHECKS,
        pool="eval",
        code_version=str(STAGE_VERSION),
        metadata=code_references(catalog, "model", "training_config"),
    )
    def hf_export(context: dg.AssetExecutionContext, config: Exporting, pamp: ProjectResource) -> dg.MaterializeResult:
        """A checkpoint as a Hugging Face directory: `config.json`, safetensors, tokenizer, model card.

        `AutoModelForCausalLM.from_pretrained` opens it. Its loss is compared with Megatron's validation loss.
        """
        with stage(context, "hf_export") as on_event:
            key = CheckpointKey.parse(context.partition_key)
            job, loss = export_job(pamp.catalog, pamp.lake, key), loss_job(pamp.lake, key)
            profile = pamp.catalog.profile(config.profile) if config.profile else None
            artifact = export_and_verify(job, loss, on_event, profile=profile)
            keep_within_budget(pamp.catalog, pamp.lake, key, on_event)
            return result(artifact)

    return hf_export
