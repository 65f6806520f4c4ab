"""TF32 is what is declared, on GPUs: told to NVIDIA's libraries and to PyTorch, since each has a default of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from pamp_pipelines.declarations.training_config import Precision, TrainingConfig
from pamp_pipelines.training.arithmetic import OVERRIDE, forbid_or_allow_tf32, rounds_to_tf32


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(OVERRIDE, "")  # so that whatever is set is taken back
    monkeypatch.delenv(OVERRIDE)
    yield
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("before", [None, "0"])
@pytest.mark.parametrize(
    ("precision", "override", "rounds"), [("fp32", "0", False), ("tf32", None, True), ("bf16", "before", False)]
)
def test_tf32_is_what_is_declared(
    precision: Precision, override: str | None, rounds: bool, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is not None:
        monkeypatch.setenv(OVERRIDE, before)
    forbid_or_allow_tf32(precision)
    assert os.environ.get(OVERRIDE) == (before if override == "before" else override)
    assert rounds_to_tf32() is rounds
    assert torch.backends.cudnn.allow_tf32 is rounds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp32"}, "state_precision: bf16 with `precision: fp32`: gradients and weights are of one kind"),
        ({"precision": "fp16"}, "take bf16 or fp8_delayed"),
        ({"precision": "fp8_blockwise"}, "Megatron would keep whole float32 copies beside"),
        ({"parallelism": {"distributed_optimizer": False}}, "needs `parallelism.distributed_optimizer: true`"),
        ({"offload": {"optimizer": 0.5}}, "cannot be combined with `offload.optimizer`"),
    ],
)
def test_state_that_cannot_be_in_bf16(changes: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {
        "corpora": {"a": 1},
        "sequence_length": 8,
        "iterations": 4,
        "global_batch_size": 1,
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"interval": 1},
        "validation": {"interval": 1},
        "state_precision": "bf16",
    }
    TrainingConfig.model_validate(fields)
    TrainingConfig.model_validate(fields | {"precision": "fp8_delayed"})
    with pytest.raises(ValueError, match=message):
        TrainingConfig.model_validate(fields | changes)
