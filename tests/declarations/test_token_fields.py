"""Cadences in tokens: resolved into iterations, with what is left over reported."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.declarations.cross_checks import cross_check
from pamp_pipelines.declarations.training_config import TOKEN_FIELDS, TrainingConfig
from pamp_pipelines.errors import DeclarationError
from pamp_pipelines.project import Project

BATCH = 8 * 64


def config(**changes):
    fields = {
        "corpora": {"a": 1},
        "sequence_length": 64,
        "tokens": 100 * BATCH + 5,
        "global_batch_size": 8,
        "optimizer": {"lr": 1e-3, "warmup_tokens": 10 * BATCH + 1, "decay_tokens": 90 * BATCH},
        "checkpoint": {"interval_tokens": 20 * BATCH + 7, "keep_every_tokens": 40 * BATCH},
        "validation": {"interval_tokens": 25 * BATCH},
        "evaluation": {"every_tokens": 50 * BATCH + 511},
    }
    return TrainingConfig.model_validate(fields | changes)


def test_tokens_become_iterations_and_the_rest_is_known():
    declared = config()
    resolved = declared.in_iterations()
    assert (resolved.optimizer.warmup_iterations, resolved.optimizer.decay_iterations) == (10, 90)
    assert (resolved.checkpoint.interval, resolved.checkpoint.keep_every) == (20, 40)
    assert (resolved.validation.interval, resolved.evaluation.every) == (25, 50)
    assert declared.remainders() == {
        "tokens": 5,
        "optimizer.warmup_tokens": 1,
        "optimizer.decay_tokens": 0,
        "checkpoint.interval_tokens": 7,
        "checkpoint.keep_every_tokens": 0,
        "validation.interval_tokens": 0,
        "evaluation.every_tokens": 511,
    }
    assert set(resolved.remainders()) == {"tokens"}
    assert resolved.in_iterations() == resolved


def test_both_units_say_the_same():
    same = config(
        optimizer={"lr": 1e-3, "warmup_iterations": 10, "decay_iterations": 90},
        checkpoint={"interval": 20, "keep_every": 40},
        validation={"interval": 25},
        evaluation={"every": 50},
    )
    assert same == config().in_iterations()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": {"interval": 5, "interval_tokens": BATCH}}, "give it or `interval`, not both"),
        ({"checkpoint": {}}, "checkpoint.interval: missing: give it or `interval_tokens`"),
        ({"validation": {}}, "validation.interval: missing"),
        ({"validation": {"interval_tokens": BATCH - 1}}, f"{BATCH - 1} is less than one global batch of {BATCH}"),
        ({"optimizer": {"lr": 1.0, "warmup_iterations": 1, "warmup_tokens": BATCH}}, "give it or `warmup_iterations`"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        config(**changes)


def test_every_pair_names_fields_that_exist():
    for field in TOKEN_FIELDS:
        for name in (field.iterations, field.tokens):
            part, _, leaf = name.partition(".")
            assert leaf in type(getattr(config(), part)).model_fields


def findings(project: Project) -> tuple[str, str]:
    report = cross_check(load_catalog(project))
    return tuple("\n".join(f"{p.field}: {p.message}" for p in found) for found in (report.errors, report.warnings))


def test_what_is_left_over_is_a_warning(project: Project, edit: Callable[[str, str, str], None]) -> None:
    file = "assets/training_configs/cfg.yaml"
    batch = load_catalog(project).training_config("cfg").tokens_per_iteration
    edit(file, "  interval: 5\nvalidation", f"  interval_tokens: {5 * batch + 3}\nvalidation")
    assert findings(project) == (
        "",
        "checkpoint.interval_tokens: rounded down to whole global batches: 3 tokens are left over",
    )


def test_offloading_has_fields_of_its_own(project: Project, edit: Callable[[str, str, str], None]) -> None:
    file = "assets/training_configs/cfg.yaml"
    edit(file, "models: [tiny]", "models: [tiny]\nmegatron_args: {optimizer-cpu-offload: true}")
    with pytest.raises(DeclarationError, match="`optimizer-cpu-offload` is set by the pipeline: use `offload` instead"):
        load_catalog(project)
    edit(file, "megatron_args: {optimizer-cpu-offload: true}", "offload: {optimizer: 1.0}")
    assert findings(project)[0] == ""
