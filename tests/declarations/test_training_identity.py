"""What each field of a training config changes: its data version and the identity of its runs, or neither."""

import itertools
import math
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pamp_pipelines.declarations.data_version import declaration_hash
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.declarations.training_identity import kept_steps
from pamp_pipelines.errors import InputError
from pamp_pipelines.training.resolve import resolved_parameters

FIELDS: dict[str, Any] = {
    "corpora": {"a": 1.0, "b": 2.0},
    "sequence_length": 8,
    "iterations": 100,
    "global_batch_size": 4,
    "optimizer": {"lr": 1e-3},
    "checkpoint": {"interval": 10},
    "validation": {"interval": 10},
}

NEITHER: dict[str, Any] = {
    "description": "other",
    "owners": ["team:nlp"],
    "models": ["tiny"],
    "profile": "slurm",
    "cron": "@daily",
    "retrain_on_new_data": True,
    "micro_batch_size": 2,
    "parallelism.tensor": 2,
    "parallelism.pipeline": 2,
    "parallelism.context": 2,
    "parallelism.sequence_parallel": True,
    "parallelism.distributed_optimizer": False,
    "parallelism.overlap_grad_reduce": True,
    "parallelism.overlap_param_gather": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    "recompute": "full",
    "offload.optimizer": 0.5,
    "offload.activation_layers": 1,
    "checkpoint.interval": 20,
    "checkpoint.interval_tokens": {"interval_tokens": 320},
    "checkpoint.minutes": 5.0,
    "checkpoint.asynchronous": True,
    "checkpoint.keep_last": 3,
    "validation.interval": 20,
    "validation.interval_tokens": {"interval_tokens": 320},
    "validation.step_0": "report",
    "limits.validation_gap": 0.5,
    "limits.loss_spike": 0.5,
    "limits.grad_norm_growth": 5.0,
    "log_interval": 5,
}
"""Field to another value of it; a mapping stands for the whole block that the field is in."""

BOTH: dict[str, Any] = {
    "corpora": {"a": 1.0, "b": 3.0},
    "document_attention": "masked",
    "sequence_length": 16,
    "tokens": 200 * 32,
    "iterations": 200,
    "horizon": 200,
    "global_batch_size": 8,
    "optimizer.lr": 2e-3,
    "optimizer.min_lr": 1e-4,
    "optimizer.decay_style": "linear",
    "optimizer.warmup_iterations": 10,
    "optimizer.warmup_tokens": 320,
    "optimizer.decay_iterations": 50,
    "optimizer.decay_tokens": 1600,
    "optimizer.weight_decay": 0.2,
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.99,
    "optimizer.eps": 1e-6,
    "optimizer.clip_grad": 2.0,
    "dropout.hidden": 0.1,
    "dropout.attention": 0.1,
    "precision": "fp32",
    "state_precision": "bf16",
    "parallelism.expert": 2,
    "checkpoint.keep_every": 20,
    "checkpoint.keep_every_tokens": 640,
    "evaluation.every": 30,
    "evaluation.every_tokens": 960,
    "evaluation.final": False,
    "evaluation.steps": [7],
    "seed": 1,
    "data_seed": 1,
    "determinism": "fast",
    "cross_entropy": "transformer_engine",
    "megatron_args": {"init-method-std": 0.01},
}

LIMITS: dict[str, Any] = {"max_epochs": {"a": 2.0}, "on_exhausted": "stop"}
"""What they change, only the sizes of the corpora can say."""


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names of all fields, blocks unfolded; a part of a block that may be left out counts as one field."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            assert not any(isinstance(part, type) and issubclass(part, BaseModel) for part in typing.get_args(field))
            yield f"{prefix}{name}"


def config(changes: dict[str, Any]) -> TrainingConfig:
    fields = {name: dict(value) if isinstance(value, dict) else value for name, value in FIELDS.items()}
    for name, value in changes.items():
        block, _, field = name.rpartition(".")
        if not block:
            fields[name] = value
        elif isinstance(value, dict):
            fields[block] = value
        else:
            fields.setdefault(block, {})[field] = value
    if "tokens" in changes:
        del fields["iterations"]
    return TrainingConfig.model_validate(fields)


def effect(changes: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the data version and the identity differ from those of ``FIELDS``."""
    base, changed = config({}), config(changes)
    assert changed != base
    return (
        declaration_hash(changed) != declaration_hash(base),
        resolved_parameters(changed) != resolved_parameters(base),
    )


def test_every_field_is_told_of_below() -> None:
    """A new field has to be added to one of the lists, and is then held to it."""
    told = [*NEITHER, *BOTH, *LIMITS]
    assert sorted(told) == sorted(leaves(TrainingConfig))


@pytest.mark.parametrize("name", NEITHER)
def test_what_decides_no_weights(name: str) -> None:
    assert effect({name: NEITHER[name]}) == (False, False)


@pytest.mark.parametrize("name", BOTH)
def test_what_decides_the_weights(name: str) -> None:
    assert effect({name: BOTH[name]}) == (True, True)


def test_limits_of_a_corpus() -> None:
    assert effect({"max_epochs": LIMITS["max_epochs"]}) == (True, False)
    assert effect({"on_exhausted": LIMITS["on_exhausted"]}) == (False, False)  # without a limit nothing is exhausted
    limited = config({"max_epochs": {"a": 2.0}})
    stopped = config(LIMITS)
    assert declaration_hash(limited) != declaration_hash(stopped)


@pytest.mark.parametrize(
    "same",
    [
        {"corpora": {"b": 4.0, "a": 2.0}},
        {"tokens": 100 * 32 + 5},
        {"checkpoint.keep_every": 1000},
        {"evaluation.every": 100},
        {"evaluation.steps": [100]},
    ],
)
def test_the_same_in_other_words(same: dict[str, Any]) -> None:
    assert effect(same) == (False, False)


def test_other_corpora_of_equal_shares_are_another_declaration() -> None:
    """Of a run the content of the shards decides, which a corpus of another name may share."""
    assert effect({"corpora": {"a": 1.0, "c": 2.0}}) == (True, False)


def test_a_cadence_of_a_billion_steps_is_hashed_at_once() -> None:
    long = {"iterations": 2_000_000_000, "evaluation.every": 1}
    assert declaration_hash(config(long)) != declaration_hash(config({"iterations": 2_000_000_000}))


def test_a_step_after_the_end_has_a_data_version_and_no_run() -> None:
    late = config({"evaluation.steps": [101]})
    assert declaration_hash(late) != declaration_hash(config({}))
    with pytest.raises(InputError, match=r"\[101\] lie after the last iteration, 100"):
        kept_steps(late)


def test_kept_steps() -> None:
    def kept(**changes: Any) -> tuple[int, ...]:
        names = {"interval": "checkpoint.interval", "keep_every": "checkpoint.keep_every"}
        given = {names.get(name, f"evaluation.{name}"): value for name, value in changes.items()}
        return kept_steps(config({"checkpoint.interval": 30, **given}))

    assert kept() == (100,)
    assert kept(final=False) == ()
    assert kept(every=40) == (40, 80, 100)
    assert kept(steps=[7], every=50) == (7, 50, 100)
    assert kept(keep_every=20) == (60, 100)  # a multiple of 20 that is saved anyway


@given(
    interval=st.integers(1, 40),
    keep_every=st.none() | st.integers(1, 60),
    every=st.none() | st.integers(1, 60),
    steps=st.sets(st.integers(1, 100), max_size=3),
    final=st.booleans(),
)
def test_kept_steps_are_those_of_the_cadence(
    interval: int, keep_every: int | None, every: int | None, steps: set[int], final: bool
) -> None:
    changes: dict[str, Any] = {
        "checkpoint": {"interval": interval, "keep_every": keep_every},
        "evaluation": {"every": every, "steps": sorted(steps), "final": final},
    }
    expected = {
        step
        for step in range(1, 101)
        if step in steps
        or (every is not None and step % every == 0)
        or (keep_every is not None and step % math.lcm(keep_every, interval) == 0)
        or (final and step == 100)
    }
    assert kept_steps(config(changes)) == tuple(sorted(expected))


def test_no_two_fields_are_listed_twice() -> None:
    assert not [pair for pair in itertools.combinations((NEITHER, BOTH, LIMITS), 2) if pair[0].keys() & pair[1].keys()]
