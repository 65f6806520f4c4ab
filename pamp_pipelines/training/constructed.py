"""What Megatron built for a run, read from the modules and objects themselves and never from parsed arguments.

An argument can be parsed and change nothing (a rope factor, an overlap flag that never reaches the gradient buffers).
These facts are reported before the first step, and compared with what the job declares: see ``departures``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pamp_pipelines.training.arithmetic import rounds_to_tf32

Facts = dict[str, Any]


def constructed(model: list[Any], optimizer: Any, scheduler: Any) -> Facts:
    """Facts of this rank's model chunks, optimizer and learning-rate schedule, as JSON data.

    Args:
        model: chunks as ``setup_model_and_optimizer`` returns them, each wrapped in Megatron's DDP.
        optimizer: a ``MegatronOptimizer``, possibly a chain of several.
        scheduler: an ``OptimizerParamScheduler``.
    """
    modules = [module for chunk in model for module in chunk.modules()]
    return {
        "parallel": _parallel(),
        "batch": _batch(),
        "arithmetic": _arithmetic(modules),
        "model": _model(model, modules),
        "dropout": _dropout(modules),
        "recompute": _recompute(modules),
        "offload": _offload(model, optimizer),
        "gradients": _gradients(model),
        "optimizer": _optimizer(optimizer),
        "schedule": _schedule(scheduler),
    }


def _parallel() -> Facts:
    """Sizes of the process groups that there are."""
    from megatron.core import mpu

    return {
        "tensor": mpu.get_tensor_model_parallel_world_size(),
        "pipeline": mpu.get_pipeline_model_parallel_world_size(),
        "context": mpu.get_context_parallel_world_size(),
        "expert": mpu.get_expert_model_parallel_world_size(),
        "data": mpu.get_data_parallel_world_size(),
    }


def _batch() -> Facts:
    """What the schedule of forward and backward passes goes by."""
    from megatron.core import num_microbatches_calculator as calculator

    return {
        "micro_batch_size": calculator.get_micro_batch_size(),
        "micro_batches": calculator.get_num_microbatches(),
    }


def _arithmetic(modules: list[Any]) -> Facts:
    """From the configurations that the built blocks and models hold."""
    blocks = [m.config for m in modules if type(m).__name__ == "TransformerBlock"]
    losses = [m.config for m in modules if hasattr(m, "compute_language_model_loss")]
    return {
        "cuda": torch.cuda.is_available(),
        "tf32": rounds_to_tf32(),
        "fp8": sorted({_fp8(config) for config in blocks}),
        "deterministic": any(config.deterministic_mode for config in blocks),
        "cross_entropy": sorted(
            {config.cross_entropy_fusion_impl if config.cross_entropy_loss_fusion else "unfused" for config in losses}
        ),
    }


def _fp8(config: Any) -> str:
    """Format and recipe, e.g. ``hybrid delayed``."""
    return f"{config.fp8} {getattr(config.fp8_recipe, 'value', config.fp8_recipe)}" if config.fp8 else "none"


def _model(model: list[Any], modules: list[Any]) -> Facts:
    parameters = {name: p for chunk in model for name, p in chunk.named_parameters()}
    return {
        "layers": sum(type(module).__name__ == "TransformerLayer" for module in modules),
        "parameters": sum(p.numel() for p in parameters.values()),
        "parameter_dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters.values()}),
        "initial_deviation": _deviation(parameters),
        "biases": sorted({name.rsplit(".", 2)[-2] for name in parameters if name.endswith(".bias")}),
        "norms": sorted({type(m).__name__ for m in modules if "norm" in type(m).__name__.lower()}),
        "norm_epsilons": sorted({float(m.eps) for m in modules if isinstance(getattr(m, "eps", None), float)}),
        "attention": sorted({type(m.core_attention).__name__ for m in modules if hasattr(m, "core_attention")}),
        "windows": [_window(module) for module in modules if type(module).__name__ == "TransformerLayer"],
        "sequence_parallel": sorted({m.sequence_parallel for m in modules if hasattr(m, "sequence_parallel")}),
    }


def _window(layer: Any) -> tuple[int, int]:
    """Number of a layer in the whole model, from 1, and how many tokens a token sees there, itself included; 0: all."""
    left, _ = getattr(layer.self_attention.core_attention, "window_size", None) or (-1, 0)
    return layer.layer_number, left + 1


def _deviation(parameters: dict[str, Any]) -> float | None:
    """Standard deviation of the vocabulary's weights on this stage: as initialised, or as loaded; None without any."""
    ends = ("word_embeddings.weight", "output_layer.weight")
    weights = [p for name, p in parameters.items() if name.endswith(ends)]
    return float(weights[0].detach().float().std()) if weights else None


def _dropout(modules: list[Any]) -> Facts:
    """Probabilities that the layers and the attention apply, wherever they hold them."""
    hidden = {float(m.hidden_dropout) for m in modules if isinstance(getattr(m, "hidden_dropout", None), float)}
    attention: set[float] = set()
    for module in modules:
        core = getattr(module, "core_attention", None)
        # Transformer Engine's has one part for each backend
        for part in core.modules() if core is not None else ():
            for name in ("dropout", "attention_dropout"):
                value = getattr(part, name, None)
                if isinstance(value, torch.nn.Dropout):
                    attention.add(float(value.p))
                elif isinstance(value, float):
                    attention.add(value)
    embeddings = {float(m.embedding_dropout.p) for m in modules if hasattr(m, "embedding_dropout")}
    return {"hidden": sorted(hidden | embeddings), "attention": sorted(attention)}


def _recompute(modules: list[Any]) -> Facts:
    blocks = [m for m in modules if type(m).__name__ == "TransformerBlock"]
    attentions = [m for m in modules if hasattr(m, "checkpoint_core_attention")]
    return {
        "whole_layers": any(block.config.recompute_granularity == "full" for block in blocks),
        "method": sorted({str(block.config.recompute_method) for block in blocks}),
        "core_attention": any(attention.checkpoint_core_attention for attention in attentions),
    }


def _offload(model: list[Any], optimizer: Any) -> Facts:
    """Layers whose activations are copied to the host, and the share of the optimizer's elements that it steps."""
    blocks = [m for chunk in model for m in chunk.modules() if type(m).__name__ == "TransformerBlock"]
    hybrid = [o.optimizer for o in _chain(optimizer) if hasattr(getattr(o, "optimizer", None), "cpu_optimizers")]
    elements = {"cpu_optimizers": 0, "gpu_optimizer": 0}
    for one in hybrid:
        for name in elements:
            parts = getattr(one, name) or []
            parts = parts if isinstance(parts, list) else [parts]
            elements[name] += sum(p.numel() for part in parts for g in part.param_groups for p in g["params"])
    whole = sum(elements.values())
    return {
        "optimizer": bool(hybrid),
        "optimizer_share": elements["cpu_optimizers"] / whole if whole else 0.0,
        "activation_layers": max(
            (b.config.cpu_offloading_num_layers if b.config._cpu_offloading_context is not None else 0 for b in blocks),
            default=0,
        ),
    }


def _gradients(model: list[Any]) -> Facts:
    """How gradients are kept and reduced, from the buckets that do it."""
    buffers = [buffer for chunk in model for buffer in getattr(chunk, "buffers", []) if hasattr(buffer, "grad_dtype")]
    configs = [buffer.ddp_config for buffer in buffers]
    groups = [group for chunk in model for group in getattr(chunk, "bucket_groups", [])]

    def each(name: str) -> list[bool]:
        return sorted({bool(getattr(config, name)) for config in configs})

    return {
        "buffers": len(buffers),
        "buckets": sum(len(group.buckets) for group in groups),
        "dtypes": sorted({str(buffer.grad_dtype).removeprefix("torch.") for buffer in buffers}),
        "overlap_grad_reduce": each("overlap_grad_reduce"),
        "overlap_param_gather": each("overlap_param_gather"),
        "distributed_optimizer": each("use_distributed_optimizer"),
        # the hooks that overlapping consists of
        "backward_hooks": sum(len(getattr(chunk, "grad_accs", [])) for chunk in model),
        "forward_hooks": sum(len(getattr(chunk, "remove_forward_pre_hook_handles", {})) for chunk in model),
    }


def _optimizer(optimizer: Any) -> Facts:
    inner = list(_chain(optimizer))
    torch_optimizers = [o.optimizer for o in inner if getattr(o, "optimizer", None) is not None]
    # an offloading optimizer keeps AdamW's values in the groups of its parts
    groups = [group for o in torch_optimizers for group in o.param_groups]
    decayed = [group for group in groups if group.get("wd_mult", 1.0) != 0.0]
    exempt = [group for group in groups if group.get("wd_mult", 1.0) == 0.0]
    scalers = [o.grad_scaler for o in inner if getattr(o, "grad_scaler", None) is not None]
    return {
        "wrappers": sorted({type(o).__name__ for o in inner}),
        "classes": sorted({f"{type(o).__module__.partition('.')[0]}.{type(o).__name__}" for o in torch_optimizers}),
        "decoupled_weight_decay": sorted({_decoupled(one) for o in torch_optimizers for one in _parts(o)}),
        "betas": sorted({tuple(map(float, group["betas"])) for group in groups if "betas" in group}),
        "eps": sorted({float(group["eps"]) for group in groups if "eps" in group}),
        "weight_decay": sorted({float(group["weight_decay"]) for group in decayed if "weight_decay" in group}),
        "decayed_tensors": sum(len(group["params"]) for group in decayed),
        "exempt_tensors": sum(len(group["params"]) for group in exempt),
        "exempt_weight_decay": sorted({float(group["weight_decay"]) for group in exempt if "weight_decay" in group}),
        "clip_grad": sorted({float(o.config.clip_grad) for o in inner}),
        "state_dtypes": _state_dtypes(torch_optimizers),
        "loss_scale": sorted({float(scaler.scale.item()) for scaler in scalers}),
    }


def _chain(optimizer: Any) -> Iterator[Any]:
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        if hasattr(one, "chained_optimizers"):
            yield from _chain(one)
        else:
            yield one


def _parts(optimizer: Any) -> list[Any]:
    """An optimizer that is partly offloaded to the CPU consists of several."""
    return list(getattr(optimizer, "sub_optimizers", [optimizer]))


def _state_dtypes(optimizers: list[Any]) -> dict[str, list[str]]:
    """How Transformer Engine's optimizer keeps master weights and moments; torch's keeps them as it gets them."""
    found: dict[str, set[str]] = {}
    for one in optimizers:
        for name, dtype in getattr(one, "name_to_dtype_map", {}).items():
            found.setdefault(name, set()).add(str(dtype).removeprefix("torch."))
    return {name: sorted(dtypes) for name, dtypes in sorted(found.items())}


def _decoupled(optimizer: Any) -> bool:
    """Whether weights decay apart from the gradient: AdamW; FusedAdam does so by a mode."""
    mode = getattr(optimizer, "adam_w_mode", None)
    return isinstance(optimizer, torch.optim.AdamW) if mode is None else bool(mode)


def _schedule(scheduler: Any) -> Facts:
    """In samples, as Megatron counts the steps of its schedule."""
    return {
        "max_lr": scheduler.max_lr,
        "min_lr": scheduler.min_lr,
        "init_lr": scheduler.init_lr,
        "decay_style": scheduler.lr_decay_style,
        "warmup_samples": scheduler.lr_warmup_steps,
        "decay_samples": scheduler.lr_decay_steps,
        "start_weight_decay": scheduler.start_wd,
        "end_weight_decay": scheduler.end_wd,
    }
