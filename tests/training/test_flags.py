"""The table of Megatron's arguments that declarations are checked with."""

from __future__ import annotations

from importlib import resources

import pytest

from pamp_pipelines.declarations.megatron_flags import FILE_NAME, megatron_flags, passthrough_argv
from pamp_pipelines.training.flags import generate


@pytest.mark.slow
def test_the_table_is_that_of_the_installed_megatron() -> None:
    committed = resources.files("pamp_pipelines.declarations").joinpath(FILE_NAME).read_text("utf-8")
    assert committed == generate(), "run python -m pamp_pipelines.training.flags"


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
        (
            "no-yarn-correction-range-round-to-int",
            True,
            ["--no-yarn-correction-range-round-to-int"],
        ),
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
    ],
)
def test_values_that_do_not_fit_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the message is checked below
        passthrough_argv(name, value)
    assert message in str(caught.value)
