"""What Megatron built for a run, read from the modules and objects themselves and never from parsed arguments.

An argument can be parsed and change nothing (a rope factor, an overlap flag that never reaches the gradient buffers).
These facts are reported before the first step, and compared with what the job declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pamp_pipelines.training.job import TrainJob

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
        "model": _model(model, modules),
        "dropout": _dropout(modules),
        "recompute": _recompute(modules),
        "offload": _offload(model, optimizer),
        "gradients": _gradients(model),
        "optimizer": _optimizer(optimizer),
        "schedule": _schedule(scheduler),
    }


def _model(model: list[Any], modules: list[Any]) -> Facts:
    parameters = {name: p for chunk in model for name, p in chunk.named_parameters()}
    return {
        "layers": sum(type(module).__name__ == "TransformerLayer" for module in modules),
        "parameters": sum(p.numel() for p in parameters.values()),
        "parameter_dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters.values()}),
        "biases": sorted({name.rsplit(".", 2)[-2] for name in parameters if name.endswith(".bias")}),
        "norms": sorted({type(m).__name__ for m in modules if "norm" in type(m).__name__.lower()}),
        "norm_epsilons": sorted({float(m.eps) for m in modules if isinstance(getattr(m, "eps", None), float)}),
        "attention": sorted({type(m.core_attention).__name__ for m in modules if hasattr(m, "core_attention")}),
        "sequence_parallel": sorted({m.sequence_parallel for m in modules if hasattr(m, "sequence_parallel")}),
    }


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


def departures(job: TrainJob, facts: Facts) -> list[str]:
    """Where what was built is not what the job declares, each in words; empty when all is as declared.

    A rank may hold none of something (a share of the distributed optimizer without norms): only what is there counts.
    """
    o, p, batch = job.optimizer, job.parallelism, job.global_batch_size
    dropout, gradients, optimizer, schedule = (
        facts[part] for part in ("dropout", "gradients", "optimizer", "schedule")
    )
    expected: list[tuple[str, Any, Any]] = [
        ("dropout.hidden", dropout["hidden"], job.dropout.hidden),
        ("dropout.attention", dropout["attention"], job.dropout.attention),
        ("recompute full", [facts["recompute"]["whole_layers"]], job.recompute == "full"),
        ("offload.optimizer", [facts["offload"]["optimizer"]], job.offload.optimizer > 0),
        ("offload.activation_layers", [facts["offload"]["activation_layers"]], job.offload.activation_layers),
        ("parallelism.distributed_optimizer", gradients["distributed_optimizer"], p.distributed_optimizer),
        ("parallelism.overlap_grad_reduce", gradients["overlap_grad_reduce"], p.overlap_grad_reduce),
        ("parallelism.overlap_param_gather", gradients["overlap_param_gather"], p.overlap_param_gather),
        ("hooks that gather parameters", [gradients["forward_hooks"] > 0], p.overlap_param_gather),
        ("decoupled weight decay", optimizer["decoupled_weight_decay"], True),
        ("optimizer.beta1, beta2", optimizer["betas"], (o.beta1, o.beta2)),
        ("optimizer.eps", optimizer["eps"], o.eps),
        ("optimizer.weight_decay", optimizer["weight_decay"], o.weight_decay),
        ("weight decay of norms and biases", optimizer["exempt_weight_decay"], 0.0),
        ("optimizer.clip_grad", optimizer["clip_grad"], o.clip_grad),
        ("optimizer.lr", [schedule["max_lr"]], o.lr),
        ("optimizer.min_lr", [schedule["min_lr"]], o.min_lr),
        ("optimizer.decay_style", [schedule["decay_style"]], o.decay_style),
        ("samples of warm-up", [schedule["warmup_samples"]], o.warmup_iterations * batch),
        ("samples until the end of the decay", [schedule["decay_samples"]], job.decay_iterations * batch),
    ]
    return [f"{name}: declared {want}, built {have}" for name, have, want in expected if set(have) - {want}]
