"""The whole Dagster side of a project, put together in one place."""

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.usable import usable_catalog
from pamp_pipelines.orchestration.assets.checkpoint import checkpoint_spec
from pamp_pipelines.orchestration.assets.declarations import declaration_specs
from pamp_pipelines.orchestration.assets.eval_scores import eval_scores_asset
from pamp_pipelines.orchestration.assets.hf_export import hf_export_asset
from pamp_pipelines.orchestration.assets.leaderboard import leaderboard_asset
from pamp_pipelines.orchestration.assets.megatron_checkpoint import megatron_checkpoint_asset
from pamp_pipelines.orchestration.assets.pretrained_checkpoint import pretrained_checkpoint_asset
from pamp_pipelines.orchestration.assets.raw_corpus import raw_corpus_asset
from pamp_pipelines.orchestration.assets.tokenized_shards import tokenized_shards_asset
from pamp_pipelines.orchestration.automation import automation_sensor
from pamp_pipelines.orchestration.executor import waiting_executor
from pamp_pipelines.orchestration.jobs import jobs
from pamp_pipelines.orchestration.partitions import partitions
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.retention import forget_old_runs
from pamp_pipelines.orchestration.retraining import retrain_on_new_data
from pamp_pipelines.orchestration.schedules import schedules
from pamp_pipelines.orchestration.sensors import end_dead_runs, register_checkpoints, watch_declarations
from pamp_pipelines.orchestration.webhook import failure_webhook
from pamp_pipelines.project import Project


def build_definitions(project: Project, *, interval_s: int = 30) -> dg.Definitions:
    """Assets, jobs, schedules and sensors of a project.

    A broken declaration keeps its partition and stops nothing but its own launches: what is wrong with it is told by
    the sensor `watch_declarations`, in the description of the declarations' assets, and by whatever needs it.

    Args:
        project: whose declarations.
        interval_s: seconds between two looks for something to evaluate, and for runs that lost their process;
            new data is looked for half as often.
    """
    catalog, _ = usable_catalog(project)
    made = jobs(catalog.names("evaluation"))
    return dg.Definitions(
        assets=assets(catalog),
        jobs=made,
        schedules=schedules(catalog),
        sensors=[
            automation_sensor(interval_s),
            watch_declarations(catalog),
            register_checkpoints(),
            end_dead_runs(interval_s),
            *failure_webhook(),
            *forget_old_runs(),
            *retrain_on_new_data(catalog, made, 2 * interval_s),
        ],
        resources={"pamp": ProjectResource(root=str(project.root))},
        executor=waiting_executor,
    )


def assets(catalog: Catalog) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """The graph, upstream first."""
    keys = partitions(catalog)
    return [
        *declaration_specs(catalog, keys),
        raw_corpus_asset(catalog, keys),
        tokenized_shards_asset(catalog, keys),
        megatron_checkpoint_asset(catalog, keys),
        pretrained_checkpoint_asset(catalog, keys),
        checkpoint_spec(catalog),
        hf_export_asset(catalog),
        *([eval_scores_asset(catalog)] if catalog.names("evaluation") else []),
        leaderboard_asset(catalog),
    ]
