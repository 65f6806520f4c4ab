"""`leaderboard`: all scores in one table."""

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.evaluation.leaderboard import STAGE_VERSION, build_leaderboard
from pamp_pipelines.orchestration.assets.eval_scores import eval_scores_key
from pamp_pipelines.orchestration.automation import WHEN_ANY_SCORE_IS_NEW
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.details import leaderboard_details, scores_schema
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.stage import stage


def leaderboard_asset(catalog: Catalog) -> dg.AssetsDefinition:
    @dg.asset(
        deps=[
            dg.AssetDep(eval_scores_key(name), partition_mapping=dg.AllPartitionMapping())
            for name in catalog.names("evaluation")
        ],
        group_name="evaluation",
        kinds={"pandas", "parquet"},
        owners=owners(catalog.evaluations.values()),
        automation_condition=WHEN_ANY_SCORE_IS_NEW,
        metadata={"dagster/column_schema": scores_schema(), **code_references(catalog, "evaluation")},
        code_version=str(STAGE_VERSION),
    )
    def leaderboard(context: dg.AssetExecutionContext, pamp: ProjectResource) -> dg.MaterializeResult:
        """All scores of all checkpoints: Parquet, CSV, and a self-contained HTML page with scores against tokens."""
        with stage(context, "leaderboard") as on_event:
            artifact = build_leaderboard(pamp.lake, on_event)
            return result(artifact, leaderboard_details(artifact))

    return leaderboard
