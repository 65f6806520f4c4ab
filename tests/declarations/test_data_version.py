"""What changes an outcome changes the hash; what does not, does not."""

import pytest

from pamp_pipelines.declarations.data_version import declaration_hash
from pamp_pipelines.declarations.training_config import TrainingConfig

FIELDS = {
    "corpora": {"a": 1.0, "b": 2.0},
    "sequence_length": 8,
    "iterations": 1,
    "global_batch_size": 1,
    "optimizer": {"lr": 1e-3},
    "checkpoint": {"interval": 1},
    "validation": {"interval": 1},
}
BASE = declaration_hash(TrainingConfig.model_validate(FIELDS))


@pytest.mark.parametrize(
    "change",
    [
        {"description": "x"},
        {"owners": ["team:nlp"]},
        {"cron": "@daily"},
        {"profile": "slurm"},
        {"seed": 1234},
        {"corpora": {"b": 2.0, "a": 1.0}},
        {"optimizer": {"lr": 0.001, "beta1": 0.9}},
    ],
)
def test_same_meaning_same_hash(change: dict) -> None:
    assert declaration_hash(TrainingConfig.model_validate(FIELDS | change)) == BASE


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"corpora": {"a": 1.0}}, {"optimizer": {"lr": 2e-3}}, {"precision": "fp32"}]
)
def test_other_meaning_other_hash(change: dict) -> None:
    assert declaration_hash(TrainingConfig.model_validate(FIELDS | change)) != BASE
