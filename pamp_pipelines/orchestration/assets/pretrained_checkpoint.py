"""`pretrained_checkpoint`: a training run."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.checkpoints import announce
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.compute_logs import following
from pamp_pipelines.orchestration.declarations import ASSETS
from pamp_pipelines.orchestration.details import training_details
from pamp_pipelines.orchestration.freshness import training_freshness
from pamp_pipelines.orchestration.grid import declared_pairs, grid_note
from pamp_pipelines.orchestration.jobs import TRAIN_HOURS
from pamp_pipelines.orchestration.limits import within
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import Partitions, dimensions
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.retries import continues_a_version
from pamp_pipelines.orchestration.stage import stage
from pamp_pipelines.orchestration.tags import tag_run
from pamp_pipelines.training.kept import read_kept
from pamp_pipelines.training.resolve import STAGE_VERSION, train_job
from pamp_pipelines.verification.step_zero import train_and_verify


class Mode(Enum):
    """How a run relates to the versions that exist."""

    auto = "auto"
    fresh = "fresh"


class Training(dg.Config):
    """Settings of one launch."""

    mode: Mode = Field(
        default=Mode.auto,
        description="auto: go on with the newest version of equal inputs, report it again when it is complete, and "
        "begin a new version when the inputs differ. fresh: always begin a new version, as schedules do.",
    )
    profile: str | None = Field(
        default=None,
        description="Where it runs: the name of a compute profile in resources/. Default: the one that the training "
        "config names. It may set other parallel sizes and another micro batch, and never changes what is trained.",
    )
    max_hours: float | None = Field(
        default=None,
        gt=0,
        le=TRAIN_HOURS,
        allow_inf_nan=False,
        description=f"End the launch after so many hours, retries included; at most {TRAIN_HOURS}. What was saved "
        "stays, and the next launch in mode auto goes on from there. Default: no limit but the profile's timeout_s and "
        "the job's maximum runtime.",
    )


DESCRIPTION = """\
A training run of a model with a config, by NVIDIA's own loop.

A retry resumes from the newest complete checkpoint. Kept checkpoints appear as partitions of `checkpoint` while the run
goes on. Loss, learning rate, gradient norm and speed are observations of this asset; the full curves are in
`metrics.jsonl` and TensorBoard.

"""


def pretrained_checkpoint_asset(catalog: Catalog, partitions: Partitions) -> dg.AssetsDefinition:
    @dg.asset(
        description=DESCRIPTION + grid_note(catalog),
        partitions_def=partitions.model_training_config,
        deps=[
            dg.AssetDep("tokenized_shards", partition_mapping=partitions.by_blend),
            dg.AssetDep("megatron_checkpoint", partition_mapping=partitions.in_runs),
            dg.AssetDep(ASSETS["model"], partition_mapping=partitions.in_runs),
            dg.AssetDep(ASSETS["training_config"], partition_mapping=partitions.in_runs),
        ],
        group_name="training",
        kinds={"megatron", "pytorch"},
        owners=owners(catalog.training_configs.values()),
        check_specs=check_specs("pretrained_checkpoint", partitions.model_training_config),
        pool="train",
        code_version=str(STAGE_VERSION),
        freshness_policy=training_freshness(catalog),
        metadata={"declared_pairs": declared_pairs(catalog), **code_references(catalog, "model", "training_config")},
    )
    def pretrained_checkpoint(
        context: dg.AssetExecutionContext, config: Training, pamp: ProjectResource
    ) -> dg.MaterializeResult:
        model, name = dimensions(context).values()

        def on_checkpoint(data: Mapping[str, Any]) -> None:
            kept = CheckpointKey.parse(data["key"])
            announce(context.instance, context.log_event, kept, read_kept(pamp.lake, kept))

        with stage(context, "pretrained_checkpoint", on_checkpoint, resumes=True) as on_event:
            pamp.catalog.require_pair(model, name)
            fresh = config.mode is Mode.fresh and not continues_a_version(context)
            job = train_job(
                pamp.catalog, pamp.lake, model, name, profile=config.profile, fresh=fresh, on_event=on_event
            )
            profile_name = config.profile or pamp.catalog.training_config(name).profile
            tag_run(context, {"version": job.run_dir.name, "profile": profile_name})
            with within(context, config.max_hours, job.profile) as profile, following(job.run_dir / "logs"):
                artifact = train_and_verify(job.model_copy(update={"profile": profile}), on_event)
            return result(artifact, training_details(artifact))

    return pretrained_checkpoint
