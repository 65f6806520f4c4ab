"""Resuming where master weights are kept as the 16 bits that bfloat16 weights lack (``state_precision: bf16``).

In the reshardable format megatron-core 0.19.2 gathers, saves and loads all state of the distributed optimizer in
float32. The bits of a master weight, 16-bit integers, pass through it unchanged, but are handed back in float32, which
Transformer Engine's FusedAdam refuses: no such checkpoint could be resumed from.
"""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Let ``DistributedOptimizer`` hand bits back as the integers that they are."""
    import torch
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    optimizer_class: Any = DistributedOptimizer
    set_states = optimizer_class._set_main_param_and_optimizer_states

    def set_states_with_bits(self: Any, parameter: Any, tensors: dict[str, Any]) -> None:
        kept_as_bits = getattr(self.optimizer, "store_param_remainders", False) and parameter.dtype == torch.bfloat16
        if kept_as_bits and "param" in tensors:
            tensors = {**tensors, "param": tensors["param"].to(torch.int16)}
        set_states(self, parameter, tensors)

    optimizer_class._set_main_param_and_optimizer_states = set_states_with_bits
