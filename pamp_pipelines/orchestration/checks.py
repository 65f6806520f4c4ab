"""Asset checks: declared on the assets, answered by the manifests.

The stages judge their own output and write the verdicts into the manifest; a check here only carries a verdict over.
A verdict that the manifest does not hold is reported as a failed warning, never as passed.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)

from pamp_pipelines.lake.manifest import CheckResult, Manifest
from pamp_pipelines.orchestration.values import table, to_metadata
from pamp_pipelines.orchestration.versions import asset_key


@dataclass(frozen=True)
class Check:
    """A verdict that the stage promises to write, for manifests whose statistics ``applies`` accepts."""

    name: str
    description: str
    severity: Literal["ERROR", "WARN"] = "ERROR"
    applies: Callable[[Mapping[str, Any]], bool] = lambda stats: True


def _held_out(stats: Mapping[str, Any]) -> bool:
    return bool(stats.get("heldout", {}).get("documents"))


def _imported(stats: Mapping[str, Any]) -> bool:
    return not stats.get("from_scratch")


def _validated(stats: Mapping[str, Any]) -> bool:
    return "validation_loss" in stats


def _sometimes(stats: Mapping[str, Any]) -> bool:
    """Only the stage knows; where it gives no verdict there is none to give."""
    return False


_FINITE = Check("finite_weights", "No weight is infinite or not a number.", "WARN", _imported)
_TOKENIZER = Check("tokenizer", "The tokenizer's files are there.", "WARN", _imported)

CHECKS: Mapping[str, tuple[Check, ...]] = {
    "raw_corpus": (Check("nothing_dropped", "Every row of the sources is a document.", "WARN"),),
    "tokenized_shards": (
        Check("counts_agree", "Documents read = written + dropped by reason; manifest, index and corpus count alike."),
        Check("index_agrees", "Offsets are the running sum of lengths and fill the .bin file."),
        Check("documents_end_with_eod", "The last token of each document is the end-of-document token."),
        Check("ids_within_vocabulary", "No token id is outside the model's vocabulary."),
        Check("held_out_not_empty", "Held-out documents exist, with their text.", applies=_held_out),
        Check("held_out_text_matches", "Encoding held-out texts again gives the stored ids.", applies=_held_out),
        Check("ids_are_the_references", "A sample of the documents has the ids that the reference library gives."),
        Check("eod_only_at_the_end", "No document holds the end-of-document token inside.", "WARN"),
    ),
    "megatron_checkpoint": (
        Check("coverage", "Every tensor of the source has its place in the checkpoint, and the reverse."),
        Check("bit_exact_round_trip", "Every weight equals the source bit for bit.", applies=_imported),
        Check("tensor_manifest", "The SHA-256 of every tensor is recorded.", applies=_imported),
        Check("construction_matches_hf", "Megatron builds the model that the config describes.", applies=_imported),
        Check("logits_match_hf", "Megatron's forward pass on the checkpoint reproduces the HF model's logits."),
        Check("loads_at_other_sizes", "Megatron loads it at other parallel sizes, bit for bit.", applies=_imported),
        _FINITE,
        _TOKENIZER,
        Check("trainable", "Megatron's training loop can build this model.", "WARN"),
    ),
    "pretrained_checkpoint": (
        Check("tracker_reached", "Megatron's tracker file names the last iteration of the run."),
        Check("kept_saved", "Every checkpoint to be kept is complete; without the last one a run has no result."),
        Check("loss_finite", "No training or validation loss is infinite or not a number."),
        Check("loss_fell", "The training loss at the end is below that of the start."),
        Check("validation_gap", "Validation and training loss agree: `limits.validation_gap`.", "WARN", _validated),
        Check("loss_spikes", "No loss is far above those before it: `limits.loss_spike`.", "WARN"),
        Check("grad_norm_growth", "Gradients have not grown: `limits.grad_norm_growth`.", "WARN"),
    ),
    "hf_export": (
        Check("coverage", "Every tensor of the architecture was written, each element from exactly one chunk."),
        Check("tensor_manifest", "Untrained weights have the SHA-256 recorded at the import.", applies=_sometimes),
        Check("loss_matches_megatron", "HF's loss equals Megatron's validation loss over the very same windows."),
        _FINITE,
        _TOKENIZER,
    ),
    "eval_scores": (
        Check("scores_finite", "Every score is a finite number."),
        Check("score_not_extreme", "No score is exactly 0 or 1, which more often is a broken prompt.", "WARN"),
        Check("prompts_fit", "No prompt was longer than the context.", "WARN", _sometimes),
        Check("beats_unigram", "Held-out text is less surprising than to token frequencies.", "WARN", _sometimes),
        Check("not_worse_than_before", "No perplexity rose by more than the declared factor.", "WARN", _sometimes),
        Check("held_out_unseen", "No held-out document stands in the training shards.", "ERROR", _sometimes),
    ),
    "leaderboard": (),
}
"""By stage: what its manifest has to answer. ``ERROR`` blocks everything downstream."""


def check_specs(asset: str, partitions_def: dg.PartitionsDefinition[Any] | None) -> list[dg.AssetCheckSpec]:
    """Checks of an asset; ``asset`` is its key with slashes, ``partitions_def`` its own.

    A named use of an API in preview: a check without partitions is that of the newest materialisation, whichever
    partition that was, so that one failed export would keep the automation from every other one.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Specifying a partitions_def on an AssetCheckSpec", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                check.name,
                asset=asset_key(asset),
                description=check.description,
                blocking=check.severity == "ERROR",
                partitions_def=partitions_def,
            )
            for check in _checks(asset)
        ]


def check_evaluations(
    instance: dg.DagsterInstance, asset: str, partition: str | None, manifest: Manifest
) -> list[dg.AssetCheckEvaluation]:
    """The same as events to report outside a run, of the newest materialisation of the partition."""
    wanted = dg.AssetRecordsFilter(asset_key(asset), asset_partitions=None if partition is None else [partition])
    (made,) = instance.fetch_materializations(wanted, limit=1).records
    target = AssetCheckEvaluationTargetMaterializationData(
        storage_id=made.storage_id, run_id=made.run_id, timestamp=made.timestamp
    )
    blocking = {check.name: check.severity == "ERROR" for check in _checks(asset)}
    return [
        dg.AssetCheckEvaluation(
            asset_key=asset_key(asset),
            check_name=str(result.check_name),
            passed=result.passed,
            metadata=result.metadata,
            target_materialization_data=target,
            severity=result.severity,
            description=result.description,
            blocking=blocking[str(result.check_name)],
            partition=partition,
        )
        for result in check_results(asset, manifest)
    ]


def check_results(asset: str, manifest: Manifest) -> list[dg.AssetCheckResult]:
    """One result for each declared check of the asset."""
    verdicts = {verdict.name: verdict for verdict in manifest.checks}
    return [_result(asset, check, verdicts.get(check.name), manifest.stats) for check in _checks(asset)]


def judged(manifest: Manifest) -> bool:
    """Whether the manifest answers every blocking check that applies to it."""
    names = {verdict.name for verdict in manifest.checks}
    return all(
        check.name in names
        for check in _checks(manifest.kind)
        if check.severity == "ERROR" and check.applies(manifest.stats)
    )


def _checks(asset: str) -> tuple[Check, ...]:
    return CHECKS[asset.partition("/")[0]]


def verdict_table(verdicts: Iterable[CheckResult]) -> dg.MetadataValue:
    """All verdicts of a manifest, also those that no asset check is declared for."""
    return table(
        [
            {"check": v.name, "verdict": "passed" if v.passed else f"failed ({v.severity})", "meaning": v.description}
            for v in verdicts
        ]
    )


def _result(asset: str, check: Check, verdict: CheckResult | None, stats: Mapping[str, Any]) -> dg.AssetCheckResult:
    if verdict is None:
        applies = check.applies(stats)
        return dg.AssetCheckResult(
            passed=not applies,
            asset_key=asset_key(asset),
            check_name=check.name,
            severity=dg.AssetCheckSeverity.WARN,
            description="Not judged: the manifest holds no such verdict." if applies else "Does not apply here.",
        )
    return dg.AssetCheckResult(
        passed=verdict.passed,
        asset_key=asset_key(asset),
        check_name=check.name,
        severity=dg.AssetCheckSeverity[verdict.severity],
        description=verdict.description or check.description,
        metadata=to_metadata(verdict.metadata),
    )
