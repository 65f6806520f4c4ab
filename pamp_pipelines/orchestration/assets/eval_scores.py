"""`eval_scores/<evaluation>`: scores of a checkpoint, one asset for each declared evaluation."""

from collections.abc import Iterator

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.files import identifier
from pamp_pipelines.evaluation.checkpoint import evaluate_checkpoint
from pamp_pipelines.evaluation.spec import STAGE_VERSION
from pamp_pipelines.lake.publication import published
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.assets.declarations import broken_note
from pamp_pipelines.orchestration.automation import AFTER_PASSED_CHECKS
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.code_references import code_references
from pamp_pipelines.orchestration.details import score_details, scores_schema
from pamp_pipelines.orchestration.failures import as_failures
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.owners import owners
from pamp_pipelines.orchestration.partitions import checkpoints
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.orchestration.stage import stage

PREFIX = "eval_scores"


def eval_scores_key(evaluation: str) -> dg.AssetKey:
    return dg.AssetKey([PREFIX, evaluation])


def eval_scores_asset(catalog: Catalog) -> dg.AssetsDefinition:
    """One step for all evaluations that a run asks for, so that the model is loaded once."""
    evaluations = catalog.names("evaluation")
    # named, since what Dagster calls them may be what it calls a check of another
    outs = {
        f"scores_of_{identifier(name)}": dg.AssetOut.from_spec(
            _spec(catalog, name), is_required=False, dagster_type=dg.Nothing
        )
        for name in evaluations
    }
    checks = [check for name in evaluations for check in check_specs(f"{PREFIX}/{name}", checkpoints)]

    @dg.multi_asset(
        name=PREFIX,
        outs=outs,
        deps=["hf_export"],
        partitions_def=checkpoints,
        check_specs=checks,
        can_subset=True,
        pool="eval",
    )
    def eval_scores(context: dg.AssetExecutionContext, pamp: ProjectResource) -> Iterator[dg.MaterializeResult]:
        asked = [name for name in evaluations if eval_scores_key(name) in context.selected_asset_keys]
        with stage(context, f"{PREFIX}/{asked[0]}") as on_event:
            key = CheckpointKey.parse(context.partition_key)
            sound = [name for name in asked if name in pamp.catalog.evaluations]
            scores = evaluate_checkpoint(pamp.catalog, pamp.lake, key, sound, on_event) if sound else []
            for artifact in scores:
                published(artifact, on_event)
        for artifact in scores:
            yield result(artifact, score_details(artifact), asset=f"{PREFIX}/{artifact.path.name}")
        with as_failures(context):
            for name in asked:
                pamp.catalog.evaluation(name)  # what is wrong with the others, once these are scored

    return eval_scores


def _spec(catalog: Catalog, name: str) -> dg.AssetSpec:
    declared = catalog.evaluations.get(name)
    return dg.AssetSpec(
        eval_scores_key(name),
        group_name="evaluation",
        kinds={"python", "huggingface"},
        owners=owners([declared] if declared else []),
        description=_description(declared) if declared else broken_note(catalog, "evaluation", name),
        automation_condition=AFTER_PASSED_CHECKS if declared else None,
        metadata={"dagster/column_schema": scores_schema(), **code_references(catalog, "evaluation", name=name)},
        code_version=str(STAGE_VERSION),
    )


def _description(declared: Evaluation) -> str:
    return f"{declared.description}\n\nlm-eval tasks: {', '.join(declared.tasks)}".strip()
