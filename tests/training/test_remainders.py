"""Megatron's own way of handing out and taking state, with an optimizer that keeps it as Transformer Engine's does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


class Kept:
    """The state of one bfloat16 weight, and what FusedAdam of Transformer Engine 2.x says of the dtypes."""

    store_param_remainders = True

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.weight = torch.arange(6, dtype=torch.bfloat16)
        self.param_groups = [{"params": [self.weight]}]
        self.state = {
            self.weight: {
                "exp_avg": torch.linspace(-1, 1, 6).bfloat16(),
                "exp_avg_sq": torch.linspace(0, 1, 6).bfloat16(),
                "master_param": torch.tensor([0, 1, -1, 2**15 - 1, -(2**15), 77], dtype=torch.int16),
            }
        }

    def get_unscaled_state(self, weight: Any, name: str) -> Any:
        state = self.state[weight][name]
        return state if name == "master_param" else state.float()

    def set_scaled_state(self, weight: Any, name: str, value: Any) -> None:
        assert value.dtype == (self.torch.int16 if name == "master_param" else self.torch.float32)
        self.state[weight][name].copy_(value)


@pytest.mark.slow
def test_state_comes_back_from_float32_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    from pamp_pipelines.training import remainders

    name = "_set_main_param_and_optimizer_states"
    own = getattr(DistributedOptimizer, name)
    monkeypatch.setattr(DistributedOptimizer, name, own)  # as it is again afterwards
    kept = Kept(torch)
    optimizer: Any = SimpleNamespace(
        optimizer=kept,
        model_param_group_index_map={kept.weight: (0, 0)},
        config=SimpleNamespace(use_precision_aware_optimizer_no_fp8_or_ds_fp8=True),
    )
    before = {key: value.clone() for key, value in kept.state[kept.weight].items()}
    # the format's buffers are float32
    saved = DistributedOptimizer._get_main_param_and_optimizer_states(optimizer, kept.weight)
    loaded = {key: torch.zeros(6).copy_(value) for key, value in saved.items()}
    for value in kept.state[kept.weight].values():
        value.zero_()
    with pytest.raises(AssertionError):
        own(optimizer, kept.weight, loaded)
    remainders.install()
    getattr(DistributedOptimizer, name)(optimizer, kept.weight, loaded)
    after = kept.state[kept.weight]
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert after["master_param"].dtype == torch.int16
