"""One job for each stage: what the launchpad and the schedules start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from pamp_pipelines.orchestration.versions import asset_key

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

HOUR = 3600
MAX_RUNTIME_TAG = "dagster/max_runtime"
"""Seconds. A tag of runs, not of assets: Dagster's run monitoring ends a run that takes longer."""

TRAIN = "train"
TRAIN_HOURS = 24 * 30


def jobs(evaluations: Sequence[str]) -> list[UnresolvedAssetJobDefinition]:
    scores = [f"eval_scores/{name}" for name in evaluations]
    return [
        _job("prepare_corpus", ["raw_corpus"], 12, "Count and hash the sources of a corpus."),
        _job("tokenize", ["tokenized_shards"], 48, "Turn a corpus into the tokens of a model."),
        _job("convert", ["megatron_checkpoint"], 12, "Convert a Hugging Face model to a Megatron checkpoint."),
        _job(TRAIN, ["pretrained_checkpoint"], TRAIN_HOURS, "Train a model with a config."),
        _job("evaluate", ["hf_export", *scores], 48, "Export a checkpoint and run all evaluations on it."),
        _job("report", ["leaderboard"], 1, "Rebuild the leaderboard from all scores."),
    ]


def _job(name: str, assets: Sequence[str], hours: int, description: str) -> UnresolvedAssetJobDefinition:
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*[asset_key(asset) for asset in assets]),
        description=description,
        tags={MAX_RUNTIME_TAG: str(hours * HOUR)},
    )
