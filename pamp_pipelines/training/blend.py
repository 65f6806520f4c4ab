"""The blend of corpora: shares of tokens, how often each corpus is read, and what happens when one is exhausted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.training.job import TrainJob, WeightedShards

BLEND = "blend.json"
"""In a version directory: what `realised` returned, written when the run's order of samples was made."""


def weighted_shards(artifact: Artifact, weight: float, corpus: str = "") -> tuple[WeightedShards, ...]:
    """The pairs of training tokens of a corpus; its weight is divided by their tokens, so all of it is drawn evenly."""
    train = artifact.manifest.stats["train"]
    return tuple(
        WeightedShards(
            corpus=corpus,
            prefix=(artifact.path / pair["name"]).absolute(),
            weight=weight * (pair["tokens"] / train["tokens"]),
        )
        for pair in train["pairs"]
    )


def epochs(config: TrainingConfig, tokens: Mapping[str, int]) -> dict[str, float]:
    """How often a run of the declared length reads each corpus.

    Args:
        config: as declared.
        tokens: training tokens of each corpus.
    """
    drawn = config.train_iterations * config.tokens_per_iteration
    return {corpus: share * drawn / tokens[corpus] for corpus, share in config.blend.items()}


def within_limits(config: TrainingConfig, tokens: Mapping[str, int], file: Path) -> TrainingConfig:
    """The config whose run reads no corpus more often than declared: the same one, or a shorter one.

    Args:
        config: as declared.
        tokens: training tokens of each corpus.
        file: of the config, for messages.

    Raises:
        InputError: a corpus would be read too often and `on_exhausted` is `refuse`, or not one global batch is left.
    """
    if not config.max_epochs or config.on_exhausted == "repeat":
        return config
    planned = epochs(config, tokens)
    beyond = {corpus: planned[corpus] for corpus, limit in config.max_epochs.items() if planned[corpus] > limit}
    if not beyond:
        return config
    share = config.blend
    # the corpora share every batch, so the first that is exhausted ends the run
    samples = min(
        config.max_epochs[corpus] * tokens[corpus] / (share[corpus] * config.sequence_length) for corpus in beyond
    )
    iterations = math.floor(samples) // config.global_batch_size
    if config.on_exhausted == "stop" and iterations:
        horizon = config.horizon_iterations
        return config.model_copy(update={"iterations": iterations, "tokens": None, "horizon": horizon})
    read = ", ".join(
        f"{corpus} {times:.2f} times (max_epochs {config.max_epochs[corpus]:g}, {tokens[corpus]} tokens)"
        for corpus, times in beyond.items()
    )
    raise InputError(
        f"{file}: max_epochs: {config.train_iterations} iterations of {config.tokens_per_iteration} tokens would read "
        f"{read}; {iterations} iterations stay within. Shorten the run, change the weights, raise `max_epochs`, or "
        "declare `on_exhausted: stop` or `repeat`."
    )


def realised(job: TrainJob, drawn: Sequence[int], tokens: Sequence[int]) -> dict[str, dict[str, float]]:
    """Samples, tokens and epochs that a run draws from each corpus.

    Args:
        job: what is run.
        drawn: samples from each pair of shards, in the order of `job.train`.
        tokens: tokens that each of them holds.
    """
    found: dict[str, dict[str, float]] = {}
    held: dict[str, int] = {}
    for shards, samples, count in zip(job.train, drawn, tokens, strict=True):
        corpus = shards.corpus or shards.prefix.name
        entry = found.setdefault(corpus, {"samples": 0, "tokens": 0})
        entry["samples"] += int(samples)
        entry["tokens"] += int(samples) * job.sequence_length
        held[corpus] = held.get(corpus, 0) + int(count)
    for corpus, entry in found.items():
        entry["epochs"] = round(entry["tokens"] / held[corpus], 4)
    return found


def write_realised(job: TrainJob, found: Mapping[str, Any]) -> None:
    """Keep it beside the run."""
    write_text(job.run_dir / BLEND, json.dumps(found, indent=2) + "\n")


def read_realised(job: TrainJob) -> dict[str, Any]:
    """What was kept; empty where there is nothing."""
    try:
        found: dict[str, Any] = json.loads((job.run_dir / BLEND).read_text())
    except (OSError, ValueError):
        return {}
    return found
