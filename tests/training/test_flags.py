"""The table of Megatron's arguments that declarations are checked with."""

from __future__ import annotations

from importlib import resources

import pytest

from pamp_pipelines.declarations.megatron_flags import (
    FILE_NAME,
    _spelled,
    megatron_flags,
    passthrough_argv,
    passthrough_problems,
)
from pamp_pipelines.declarations.megatron_open import OPEN, OPEN_DESTINATIONS
from pamp_pipelines.declarations.megatron_owned import OWNED
from pamp_pipelines.training.flags import generate


@pytest.mark.slow
def test_the_table_is_that_of_the_installed_megatron() -> None:
    committed = resources.files("pamp_pipelines.declarations").joinpath(FILE_NAME).read_text("utf-8")
    assert committed == generate(), "run python -m pamp_pipelines.training.flags"


def test_the_negative_spelling_of_a_switch() -> None:
    """No argument that is open today has such a pair of spellings."""
    flag = megatron_flags()["no-yarn-correction-range-round-to-int"]
    assert _spelled(flag, "no-yarn-correction-range-round-to-int").argv(True) == [
        "--no-yarn-correction-range-round-to-int"
    ]


def test_every_argument_is_either_open_or_owned() -> None:
    """New arguments of a new Megatron are neither, until somebody has read what they do."""
    destinations = {flag.dest for flag in megatron_flags().values()}
    assert destinations == OPEN_DESTINATIONS | set(OWNED)
    assert not OPEN_DESTINATIONS & set(OWNED)
    assert sum(len(names.split()) for names in OPEN.values()) == len(OPEN_DESTINATIONS), "one is in two lists"


def test_an_argument_in_no_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pamp_pipelines.declarations.megatron_flags.OPEN_DESTINATIONS", OPEN_DESTINATIONS - {"profile"})
    with pytest.raises(ValueError, match=r"`profile` of Megatron .* is in no list"):
        passthrough_argv("profile", True)


def test_two_spellings_of_one_argument_are_refused() -> None:
    found = passthrough_problems(
        {"num-workers": 1, "manual-gc": True, "num_workers": 2, "--num-workers": 3, "load": "x"}
    )
    assert found["num_workers"] == "`num_workers` is the same argument as `num-workers`: keep one"
    assert sorted(found) == ["--num-workers", "load", "num_workers"]


def test_every_spelling_finds_its_argument() -> None:
    assert megatron_flags()["save-interval"] is megatron_flags()["persistent-save-interval"]
    assert megatron_flags()["norm-epsilon"].dest == "layernorm_epsilon"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("init-method-std", 0.01, ["--init-method-std", "0.01"]),
        ("init_method_std", 1, ["--init-method-std", "1"]),
        ("manual-gc", True, ["--manual-gc"]),
        ("manual-gc", False, []),
        ("no-rope-fusion", True, ["--no-rope-fusion"]),
        ("attention-backend", "flash", ["--attention-backend", "flash"]),
        ("moe-router-load-balancing-type", ["aux_loss"], ["--moe-router-load-balancing-type", "aux_loss"]),
    ],
)
def test_values_become_words(name: str, value: object, words: list[str]) -> None:
    assert passthrough_argv(name, value) == words


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("manual-gc", 1, "`manual-gc` takes true or false, not 1"),
        ("manual-gc-interval", 1.5, "`manual-gc-interval` takes a whole number, not 1.5"),
        ("manual-gc-interval", True, "takes a whole number, not True"),
        ("init-method-std", "small", "takes a number, not 'small'"),
        ("attention-backend", "fast", "'fast' is not one of flash, fused, unfused, local, auto"),
        ("moe-router-load-balancing-type", "aux_loss", "takes a list"),
        ("inti-method-std", 1.0, "did you mean `init-method-std`"),
        ("load", "/x", "`load` is set by the pipeline"),
        ("persistent-save-interval", 5, "is set by the pipeline: use `checkpoint` instead"),
        ("hidden-size", 64, "it follows from the model's config.json"),
        ("num-experts", 4, "it follows from the model's config.json"),
        ("multi-latent-attention", True, "it follows from the model's config.json"),
        ("apply-layernorm-1p", True, "it follows from the model's config.json"),
        ("softmax-type", "learnable", "it follows from the model's config.json"),
        ("apply-residual-connection-post-layernorm", True, "it follows from the model's config.json"),
        ("hybrid-layer-pattern", "M*", "it follows from the model's config.json"),
        ("use-mup", True, "it follows from the model's config.json"),
        ("spec", ["a", "b"], "it names code to run"),
        ("trust-remote-code", True, "it names code to run"),
        ("freeze-all-layers", True, "all weights are initialised from `seed` or the import, and trained"),
        ("perform-rl-step", True, "the pipeline does no reinforcement learning"),
        ("start-weight-decay", 0.1, "use `optimizer.weight_decay` instead"),
        ("lr-warmup-init", 1e-6, "use `optimizer.warmup_iterations` instead"),
    ],
)
def test_values_that_do_not_fit_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the message is checked below
        passthrough_argv(name, value)
    assert message in str(caught.value)
