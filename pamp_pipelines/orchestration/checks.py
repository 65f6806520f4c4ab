"""Asset checks: declared on the assets, answered by the manifests.

The stages judge their own output and write the verdicts into the manifest; a check here only carries a verdict over.
A verdict that the manifest does not hold is reported as a failed warning, never as passed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg

from pamp_pipelines.lake.manifest import CheckResult, Manifest
from pamp_pipelines.orchestration.values import table, to_metadata


@dataclass(frozen=True)
class Check:
    """A verdict that the stage promises to write."""

    name: str
    description: str
    severity: Literal["ERROR", "WARN"] = "ERROR"


CHECKS: Mapping[str, tuple[Check, ...]] = {
    "raw_corpus": (),
    "tokenized_shards": (
        Check("documents_accounted", "Every document of the corpus was written or dropped for a counted reason."),
    ),
    "megatron_checkpoint": (
        Check("coverage", "Every tensor of the source has its place in the checkpoint, and the reverse."),
        Check("logits_match_hf", "Megatron's forward pass on the checkpoint reproduces the HF model's logits."),
    ),
    "pretrained_checkpoint": (
        Check("tracker_reached", "Megatron's tracker file names the last iteration of the run."),
        Check("loss_finite", "No training or validation loss is infinite or not a number."),
        Check("loss_fell", "The training loss at the end is below that of the start."),
        Check("validation_gap", "The validation loss is within 10 % of the training loss.", "WARN"),
    ),
    "hf_export": (
        Check("loss_matches_megatron", "HF's loss equals Megatron's validation loss over the very same windows."),
    ),
}
"""By asset: what its manifest has to answer. ``ERROR`` blocks everything downstream."""


def check_specs(asset: str) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(check.name, asset=asset, description=check.description, blocking=check.severity == "ERROR")
        for check in CHECKS[asset]
    ]


def check_results(asset: str, manifest: Manifest) -> list[dg.AssetCheckResult]:
    """One result for each declared check of the asset."""
    verdicts = {verdict.name: verdict for verdict in manifest.checks}
    return [_result(asset, check, verdicts.get(check.name)) for check in CHECKS[asset]]


def verdict_table(verdicts: Iterable[CheckResult]) -> dg.MetadataValue:
    """All verdicts of a manifest, also those that no asset check is declared for."""
    return table(
        [
            {"check": v.name, "verdict": "passed" if v.passed else f"failed ({v.severity})", "meaning": v.description}
            for v in verdicts
        ]
    )


def _result(asset: str, check: Check, verdict: CheckResult | None) -> dg.AssetCheckResult:
    if verdict is None:
        return dg.AssetCheckResult(
            passed=False,
            asset_key=asset,
            check_name=check.name,
            severity=dg.AssetCheckSeverity.WARN,
            description="Not judged: the manifest holds no verdict of this name.",
        )
    metadata: dict[str, Any] = to_metadata(verdict.metadata)
    return dg.AssetCheckResult(
        passed=verdict.passed,
        asset_key=asset,
        check_name=check.name,
        severity=dg.AssetCheckSeverity[verdict.severity],
        description=verdict.description or check.description,
        metadata=metadata,
    )
