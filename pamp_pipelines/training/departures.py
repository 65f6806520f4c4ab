"""Where what Megatron built is not what a run declares: such a run is ended before its first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pamp_pipelines.training.constructed import Facts
from pamp_pipelines.training.job import TrainJob

_Expectation = tuple[str, Any, Any]
"""Words for what is compared; the distinct values that were built; the one that is declared."""

_WEIGHTS = {"fp32": "float32", "tf32": "float32", "fp16": "float16"}
"""dtype of the weights by precision; bfloat16 for the others, fp8's included."""
_FP8 = {"fp8_delayed": "hybrid delayed", "fp8_tensorwise": "hybrid tensorwise", "fp8_blockwise": "e4m3 blockwise"}


def departures(job: TrainJob, facts: Facts) -> list[str]:
    """Where what was built is not what the job declares, each in words; empty when all is as declared.

    A rank may hold none of something (a share of the distributed optimizer without norms): only what is there counts.
    """
    parts = (_layout, _windows, _arithmetic, _memory, _optimizer)
    expected = [expectation for part in parts for expectation in part(job, facts)]
    return [f"{name}: declared {want}, built {have}" for name, have, want in expected if set(have) - {want}]


def _names(job: TrainJob) -> set[str]:
    """Of the further Megatron arguments."""
    return {name.replace("_", "-") for name in job.megatron_args}


def _layout(job: TrainJob, facts: Facts) -> Iterator[_Expectation]:
    p, built, gradients = job.parallelism, facts["parallel"], facts["gradients"]
    for name in ("tensor", "pipeline", "context", "expert"):
        yield f"parallelism.{name}", [built[name]], getattr(p, name)
    yield "data parallel", [built["data"]], job.data_parallel
    # with one tensor-parallel process there is nothing to split
    split = p.sequence_parallel and p.tensor > 1
    yield "parallelism.sequence_parallel", [any(facts["model"]["sequence_parallel"])], split
    yield "micro_batch_size", [facts["batch"]["micro_batch_size"]], job.micro_batch_size
    accumulated = job.global_batch_size // (job.micro_batch_size * job.data_parallel)
    yield "micro batches in a global batch", [facts["batch"]["micro_batches"]], accumulated
    yield "parallelism.distributed_optimizer", gradients["distributed_optimizer"], p.distributed_optimizer
    yield "parallelism.overlap_grad_reduce", gradients["overlap_grad_reduce"], p.overlap_grad_reduce
    yield "parallelism.overlap_param_gather", gradients["overlap_param_gather"], p.overlap_param_gather
    yield "hooks that gather parameters", [gradients["forward_hooks"] > 0], p.overlap_param_gather


def _arithmetic(job: TrainJob, facts: Facts) -> Iterator[_Expectation]:
    built = facts["arithmetic"]
    dtype = _WEIGHTS.get(job.precision, "bfloat16")
    # routers and the like may be kept in another one besides
    yield f"{dtype} weights", [dtype in facts["model"]["parameter_dtypes"]], True
    yield "products in fp8", built["fp8"], _FP8.get(job.precision, "none")
    if job.precision == "fp16":
        yield "scaling of the loss", [bool(facts["optimizer"]["loss_scale"])], True
    if job.precision in ("fp32", "tf32"):
        yield "products in TF32", [built["tf32"]], job.precision == "tf32"
    if job.state_precision == "fp32" and "grad-reduce-in-bf16" not in _names(job):
        yield "gradients in float32", ["float32" in facts["gradients"]["dtypes"]], True
    if job.state_precision != "fp32":
        yield "gradients in bfloat16", ["bfloat16" in facts["gradients"]["dtypes"]], True
        for name, dtype in (("exp_avg", "bfloat16"), ("exp_avg_sq", "bfloat16"), ("master_param", "float32")):
            yield f"dtype of the optimizer's {name}", facts["optimizer"]["state_dtypes"].get(name, []), dtype
    if built["cuda"]:
        yield "determinism exact", [built["deterministic"]], job.determinism == "exact"
        fused = ["te" in built["cross_entropy"]] if built["cross_entropy"] else []
        yield "cross_entropy transformer_engine", fused, job.cross_entropy == "transformer_engine"
    yield "dropout.hidden", facts["dropout"]["hidden"], job.dropout.hidden
    yield "dropout.attention", facts["dropout"]["attention"], job.dropout.attention


def _windows(job: TrainJob, facts: Facts) -> Iterator[_Expectation]:
    window = job.window
    for layer, tokens in facts["model"]["windows"]:
        declared = window.tokens if window is not None and window.layers[layer - 1] else 0
        yield f"sliding window of layer {layer}", [tokens], declared


def _memory(job: TrainJob, facts: Facts) -> Iterator[_Expectation]:
    yield "recompute full", [facts["recompute"]["whole_layers"]], job.recompute == "full"
    if "recompute-modules" not in _names(job):
        yield "recompute selective", [facts["recompute"]["core_attention"]], job.recompute == "selective"
    yield "offload.optimizer", [facts["offload"]["optimizer"]], job.offload.optimizer > 0
    yield "offload.activation_layers", [facts["offload"]["activation_layers"]], job.offload.activation_layers


def _optimizer(job: TrainJob, facts: Facts) -> Iterator[_Expectation]:
    o, optimizer, schedule = job.optimizer, facts["optimizer"], facts["schedule"]
    yield "decoupled weight decay", optimizer["decoupled_weight_decay"], True
    yield "optimizer.beta1, beta2", optimizer["betas"], (o.beta1, o.beta2)
    yield "optimizer.eps", optimizer["eps"], o.eps
    yield "optimizer.weight_decay", optimizer["weight_decay"], o.weight_decay
    yield "weight decay of norms and biases", optimizer["exempt_weight_decay"], 0.0
    yield "optimizer.clip_grad", optimizer["clip_grad"], o.clip_grad
    yield "optimizer.lr", [schedule["max_lr"]], o.lr
    yield "optimizer.min_lr", [schedule["min_lr"]], o.min_lr
    yield "optimizer.decay_style", [schedule["decay_style"]], o.decay_style
    yield "samples of warm-up", [schedule["warmup_samples"]], o.warmup_iterations * job.global_batch_size
    yield (
        "samples until the end of the decay",
        [schedule["decay_samples"]],
        job.decay_iterations * job.global_batch_size,
    )
