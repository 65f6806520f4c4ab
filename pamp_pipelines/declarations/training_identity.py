"""What of a training config decides the weights: the one list that data versions and identities of runs go by.

Whatever is not named here decides them, so a field that is added counts until somebody says otherwise.
"""

import math
from typing import Any

from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.errors import InputError

WORDS_AND_PLACES = frozenset({"description", "owners", "models", "cron", "retrain_on_new_data", "profile"})
"""Words for people, whom else it trains, and when or where it runs."""

RESOLVED = frozenset({"tokens", "iterations", "horizon", "evaluation", "corpora", "max_epochs", "on_exhausted"})
"""Counted by what they come to: iterations, kept steps, and shares."""

LAYOUT = frozenset(
    {
        "micro_batch_size",
        "parallelism",
        "recompute",
        "offload",
        "checkpoint",
        "validation",
        "log_interval",
        "limits",
    }
)
"""How the same mathematics is laid out and watched: a run may be resumed with another of these."""

LATER = ("document_attention", "state_precision")
"""Fields that came after runs had been made: with its default such a field leaves their identity as it was."""


def decides_weights(config: TrainingConfig) -> dict[str, Any]:
    """What decides the weights besides the content of the inputs and their shares, all defaults written out, as JSON.

    Layout is left out on purpose (tensor, pipeline and data parallel sizes, micro batch, recomputation): it changes the
    order of additions and not what is computed, and a run may be resumed on other machines. The size of the expert
    parallel group is in: optimizer state does not move between groups of experts.

    Raises:
        InputError: as ``kept_steps``.
    """
    return {**_without_cadence(config), "kept": kept_steps(config)}


def declared_training(config: TrainingConfig) -> dict[str, Any]:
    """The same of the declaration alone: corpora by name, and their limits, which only their sizes can resolve."""
    limits = {"max_epochs": dict(sorted(config.max_epochs.items())), "on_exhausted": config.on_exhausted}
    return {
        **_without_cadence(config),
        "kept": _cadence(config),
        "blend": config.blend,
        **(limits if config.max_epochs else {}),
    }


def _without_cadence(config: TrainingConfig) -> dict[str, Any]:
    config = config.in_iterations()
    later = {name for name in LATER if getattr(config, name) == TrainingConfig.model_fields[name].default}
    return {
        **config.model_dump(mode="json", exclude={*WORDS_AND_PLACES, *RESOLVED, *LAYOUT, *later}),
        "iterations": config.train_iterations,
        **({"horizon": horizon} if (horizon := config.horizon_iterations) else {}),
        "expert_parallel": config.parallelism.expert,
    }


def kept_steps(config: TrainingConfig) -> tuple[int, ...]:
    """Steps whose checkpoint is kept: the evaluation's cadence, every n-th save, and the last. Step 0 is no save.

    Raises:
        InputError: a step lies after the end.
    """
    last = config.train_iterations
    if late := [step for step in config.evaluation.steps if step > last]:
        raise InputError(f"evaluation.steps: {late} lie after the last iteration, {last}")
    cadence = _cadence(config)
    repeated = (step for every in cadence["every"] for step in range(every, last + 1, every))
    return tuple(sorted({*cadence["steps"], *repeated}))


def _cadence(config: TrainingConfig) -> dict[str, list[int]]:
    """Kept steps without listing those at the multiples of a number, of which there may be millions."""
    config = config.in_iterations()
    last = config.train_iterations
    distances = set()
    if config.evaluation.every:
        distances.add(config.evaluation.every)
    if config.checkpoint.keep_every:
        # of the saves that there are anyway, those at a multiple
        assert config.checkpoint.interval is not None
        distances.add(math.lcm(config.checkpoint.keep_every, config.checkpoint.interval))
    # one multiple alone is a step like any other, so that equal cadences read alike
    every = sorted(n for n in distances if 2 * n <= last and not any(n % other == 0 for other in distances - {n}))
    steps = {*config.evaluation.steps, *([last] if config.evaluation.final else [])}
    steps |= {n for n in distances if n <= last < 2 * n}
    return {"every": every, "steps": sorted(step for step in steps if all(step % n for n in every))}
