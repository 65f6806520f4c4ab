"""Offloading, as the constructed optimizer and model show it; Megatron's own step needs a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pamp_pipelines.declarations.training_config import TrainingConfig


@pytest.mark.slow
def test_the_optimizer_that_megatron_builds_says_what_the_host_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    from pamp_pipelines.training.constructed import _offload

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    weights = [torch.nn.Parameter(torch.zeros(8, 4)), torch.nn.Parameter(torch.zeros(8))]
    hybrid = HybridDeviceOptimizer(
        [{"params": weights}],
        offload_fraction=1.0,
        cpu_optimizer_cls=torch.optim.AdamW,
        gpu_optimizer_cls=torch.optim.AdamW,
        overlap_cpu_optimizer_d2h_h2d=False,
        pin_cpu_grads=False,
        pin_cpu_params=False,
    )
    assert _offload([], SimpleNamespace(optimizer=hybrid)) == {
        "optimizer": True,
        "optimizer_share": 1.0,
        "activation_layers": 0,
    }
    plain = SimpleNamespace(optimizer=torch.optim.AdamW(weights))
    chain = SimpleNamespace(chained_optimizers=[plain, plain])
    assert _offload([], chain) == {"optimizer": False, "optimizer_share": 0.0, "activation_layers": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"offload": {"optimizer": 0.5}, "parallelism": {"distributed_optimizer": False}},
            "offload.optimizer: needs `parallelism.distributed_optimizer: true`",
        ),
        ({"offload": {"activation_layers": 1}, "recompute": "full"}, "cannot be combined with `recompute: full`"),
        (
            {"offload": {"activation_layers": 1}, "parallelism": {"pipeline": 2}},
            "cannot be combined with `parallelism.pipeline`",
        ),
        ({"offload": {"optimizer": 1.5}}, "less than or equal to 1"),
    ],
)
def test_what_cannot_be_offloaded_together(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "corpora": {"a": 1},
        "sequence_length": 8,
        "iterations": 4,
        "global_batch_size": 1,
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"interval": 1},
        "validation": {"interval": 1},
    }
    with pytest.raises(ValueError, match=message):
        TrainingConfig.model_validate(fields | changes)
