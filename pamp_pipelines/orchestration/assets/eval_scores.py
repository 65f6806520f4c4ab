"""`eval_scores/<evaluation>`: scores of a checkpoint, one asset for each declared evaluation."""

from collections.abc import Iterator

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.evaluation.checkpoint import evaluate_checkpoint
from pamp_pipelines.evaluation.spec import STAGE_VERSION
from pamp_pipelines.lake.publication import published
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.automation import AFTER_PASSED_CHECKS
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.details import score_details, scores_schema
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import checkpoints
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.stage import stage
from pamp_pipelines.orchestration.tags import checkpoint_tags, tag_run

PREFIX = "eval_scores"


def eval_scores_key(evaluation: str) -> dg.AssetKey:
    return dg.AssetKey([PREFIX, evaluation])


def eval_scores_asset(catalog: Catalog) -> dg.AssetsDefinition:
    """One step for all evaluations that a run asks for, so that the model is loaded once."""
    specs = [_spec(catalog, name, declared) for name, declared in catalog.evaluations.items()]

    checks = [check for name in catalog.evaluations for check in check_specs(f"{PREFIX}/{name}", checkpoints)]

    @dg.multi_asset(name=PREFIX, specs=specs, check_specs=checks, can_subset=True, pool="eval")
    def eval_scores(context: dg.AssetExecutionContext, pamp: ProjectResource) -> Iterator[dg.MaterializeResult]:
        asked = [name for name in catalog.evaluations if eval_scores_key(name) in context.selected_asset_keys]
        with stage(context, f"{PREFIX}/{asked[0]}") as on_event:
            key = CheckpointKey.parse(context.partition_key)
            tag_run(context, checkpoint_tags(key))
            scores = evaluate_checkpoint(pamp.catalog, pamp.lake, key, asked, on_event)
            for artifact in scores:
                published(artifact, on_event)
        for artifact in scores:
            yield result(artifact, score_details(artifact), asset=f"{PREFIX}/{artifact.path.name}")

    return eval_scores


def _spec(catalog: Catalog, name: str, declared: Evaluation) -> dg.AssetSpec:
    return dg.AssetSpec(
        eval_scores_key(name),
        deps=["hf_export"],
        partitions_def=checkpoints,
        group_name="evaluation",
        kinds={"python", "huggingface"},
        owners=owners([declared]),
        description=f"{declared.description}\n\nlm-eval tasks: {', '.join(declared.tasks)}".strip(),
        automation_condition=AFTER_PASSED_CHECKS,
        metadata={"dagster/column_schema": scores_schema(), **code_references(catalog, "evaluation", name=name)},
        code_version=str(STAGE_VERSION),
    )
