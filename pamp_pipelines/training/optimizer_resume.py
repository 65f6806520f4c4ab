"""Resuming Megatron's distributed optimizer where it runs on ``torch.optim.AdamW``.

With Transformer Engine or Apex, Megatron uses their FusedAdam, which keeps one ``step`` per group of parameters.
torch's AdamW keeps ``step`` as a tensor per parameter, for which megatron-core 0.19.2 has three bugs.
"""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Repair loading in ``DistributedOptimizer``; nothing to repair with Transformer Engine or Apex."""
    import torch
    from megatron.core.optimizer import distrib_optimizer

    if distrib_optimizer.HAVE_APEX_OR_TE:
        return
    optimizer_class = distrib_optimizer.DistributedOptimizer
    sharded_state_dict = optimizer_class.sharded_state_dict
    load_state_dict = optimizer_class.load_state_dict
    set_states = optimizer_class._set_main_param_and_optimizer_states

    def sharded_state_dict_of_allocated(
        self: Any, model: Any, is_loading: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        # 1. state_dict() asserts that all steps are equal, and finds none before the first step
        if is_loading:
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    state = self.optimizer.state[parameter]
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"] = torch.zeros_like(parameter)
                        state["exp_avg_sq"] = torch.zeros_like(parameter)
        return sharded_state_dict(self, model, is_loading, *args, **kwargs)

    def set_states_except_step(self: Any, parameter: Any, tensors: dict[str, Any]) -> None:
        # 2. expects `step`, which the formats keep per group and not per parameter; None is left alone
        set_states(self, parameter, {**tensors, "step": None})

    def load_state_dict_with_own_steps(self: Any, state_dict: dict[str, Any]) -> None:
        # main parameters are views of leaves that require gradients
        with torch.no_grad():
            load_state_dict(self, state_dict)
        # 3. one tensor was given to all parameters, so that AdamW would count it up once per parameter
        for state in self.optimizer.state.values():
            state["step"] = state["step"].clone()

    optimizer_class.sharded_state_dict = sharded_state_dict_of_allocated
    optimizer_class._set_main_param_and_optimizer_states = set_states_except_step
    optimizer_class.load_state_dict = load_state_dict_with_own_steps
