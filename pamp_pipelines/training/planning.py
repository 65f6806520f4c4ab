"""What a run needs before it runs: memory by part, a layout that fits, time, money and disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pamp_pipelines.conversion.architectures import window_of
from pamp_pipelines.declarations.training_config import BF16_STATE, Parallelism, TrainingConfig
from pamp_pipelines.declarations.training_identity import kept_steps
from pamp_pipelines.training.accelerators import GIB, Accelerator
from pamp_pipelines.training.footprint import WHOLE, Footprint, footprint, gathered_bytes, saved_bytes
from pamp_pipelines.training.shape import Shape, flops_per_token, shape_of

RESERVED_GIB = 4.0
"""Left free on each GPU: CUDA contexts, communication buffers, workspaces, and gaps between blocks."""
UTILISATION = {"bf16": 0.50, "fp16": 0.48, "tf32": 0.17, "fp32": 0.80}
"""Share of the peak that training reaches on one node, measured on an H200; fp8: 0.33 (docs/measurements.md)."""
_FP8_UTILISATION = 0.33
_NODE = 8
"""GPUs with fast links between them: tensor parallelism does not reach further."""


@dataclass(frozen=True)
class Layout:
    """One way to lay a run out, and what it would hold on the fullest GPU."""

    parallelism: Parallelism
    data_parallel: int
    micro_batch_size: int
    recompute: str
    memory: Footprint

    @property
    def gib(self) -> float:
        return self.memory.total / GIB

    def words(self) -> str:
        """As a person would name it."""
        p = self.parallelism
        return (
            f"tensor {p.tensor}, pipeline {p.pipeline}, context {p.context}, expert {p.expert}, "
            f"data {self.data_parallel}, micro batch {self.micro_batch_size}, recompute {self.recompute}"
        )

    def data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "parallelism": self.parallelism.model_dump(),
            "data_parallel": self.data_parallel,
            "micro_batch_size": self.micro_batch_size,
            "recompute": self.recompute,
            "bytes": asdict(self.memory) | {"total": self.memory.total},
        }


@dataclass(frozen=True)
class Plan:
    """The forecast of one run.

    ``proposed`` is the declared layout where it fits, else the nearest that does; None where none does. Then
    ``with_bf16_state`` is one that does with ``state_precision: bf16``, which changes the result.
    """

    shape: Shape
    gpus: int
    accelerator: Accelerator
    declared: Layout | None
    proposed: Layout | None
    refusals: tuple[str, ...]
    seconds: float
    price: float | None
    checkpoint_bytes: int
    checkpoints: int
    export_bytes: int
    exports: int
    host_bytes: int
    """Of the memory of a machine with up to eight GPUs, while it saves."""
    with_bf16_state: Layout | None = None

    @property
    def usable_gib(self) -> float:
        return self.accelerator.memory_gib - RESERVED_GIB

    @property
    def disk_bytes(self) -> int:
        """Of all checkpoints that lie on the disk at once and of all exports."""
        return self.checkpoint_bytes * self.checkpoints + self.export_bytes * self.exports


def plan(
    hf_config: Mapping[str, Any],
    config: TrainingConfig,
    *,
    gpus: int,
    accelerator: Accelerator,
    price_per_gpu_hour: float | None = None,
) -> Plan:
    """Forecast a run of a model with a training config.

    Args:
        hf_config: content of the model's config.json.
        config: as declared; its own layout is tried first.
        gpus: how many of the accelerator there are.
        price_per_gpu_hour: in any currency.

    Raises:
        InputError: the model is unknown.
    """
    config = config.in_iterations()
    shape = shape_of(hf_config)
    usable = accelerator.memory_gib - RESERVED_GIB
    refusals = []
    declared = None
    peak = accelerator.peak(config.precision)
    if peak is None:
        refusals.append(f"{accelerator.name} has no {config.precision} arithmetic: take bf16")
    problem = _impossible(hf_config, config, config.parallelism, gpus, config.micro_batch_size)
    if problem:
        refusals.append(f"as declared: {problem}")
    else:
        declared = _layout(shape, config, config.parallelism, gpus, config.micro_batch_size, config.recompute)
        if declared.gib > usable:
            refusals.append(f"as declared ({declared.words()}): {_too_much(declared, usable)}")
    proposed = None
    if peak is not None:
        if declared is not None and declared.gib <= usable:
            proposed = declared
        else:
            proposed = _search(shape, hf_config, config, gpus, usable, refusals)
    smaller = None
    if peak is not None and proposed is None and config.state_precision == "fp32":
        smaller = _with_bf16_state(shape, hf_config, config, gpus, usable)
    kept = len(kept_steps(config))
    tokens = config.train_iterations * config.tokens_per_iteration
    share = _FP8_UTILISATION if config.precision.startswith("fp8") else UTILISATION[config.precision]
    work = flops_per_token(shape, config.sequence_length) * tokens
    seconds = work / (gpus * (peak or accelerator.peak_tflops["bf16"]) * 1e12 * share)
    return Plan(
        shape=shape,
        gpus=gpus,
        accelerator=accelerator,
        declared=declared,
        proposed=proposed,
        refusals=tuple(refusals),
        seconds=seconds,
        price=None if price_per_gpu_hour is None else price_per_gpu_hour * gpus * seconds / 3600,
        checkpoint_bytes=saved_bytes(shape, config.precision, config.parallelism, gpus),
        # rolling resume points, and the one that is being written
        checkpoints=kept + config.checkpoint.keep_last + 1,
        # the imported weights at step 0 are exported too
        export_bytes=(4 if config.precision in WHOLE else 2) * shape.parameters,
        exports=kept + 1,
        host_bytes=gathered_bytes(
            shape,
            proposed.parallelism if proposed else config.parallelism,
            min(gpus, _NODE),
            config.megatron_args,
        ),
        with_bf16_state=smaller,
    )


def _with_bf16_state(
    shape: Shape, hf_config: Mapping[str, Any], config: TrainingConfig, gpus: int, usable: float
) -> Layout | None:
    if config.precision not in BF16_STATE or config.offload.optimizer:
        return None
    return _search(shape, hf_config, config.model_copy(update={"state_precision": "bf16"}), gpus, usable, [])


def _layout(
    shape: Shape, config: TrainingConfig, parallelism: Parallelism, gpus: int, micro_batch_size: int, recompute: str
) -> Layout:
    data_parallel = gpus // parallelism.model_parallel
    memory = footprint(
        shape,
        precision=config.precision,
        state_precision=config.state_precision,
        parallelism=parallelism,
        data_parallel=data_parallel,
        micro_batch_size=micro_batch_size,
        micro_batches=config.global_batch_size // (micro_batch_size * data_parallel),
        sequence_length=config.sequence_length,
        recompute=recompute,
        cross_entropy=config.cross_entropy,
        megatron_args=config.megatron_args,
        offload=config.offload,
    )
    return Layout(parallelism, data_parallel, micro_batch_size, recompute, memory)


def _impossible(
    hf_config: Mapping[str, Any], config: TrainingConfig, parallelism: Parallelism, gpus: int, micro_batch_size: int
) -> str | None:
    """Why a layout cannot run on this many GPUs, whatever their memory."""
    if gpus % parallelism.model_parallel:
        return f"tensor x pipeline x context = {parallelism.model_parallel} does not divide {gpus} GPUs"
    together = micro_batch_size * (gpus // parallelism.model_parallel)
    if config.global_batch_size % together:
        return (
            f"global_batch_size {config.global_batch_size} is no multiple of micro batch {micro_batch_size} x data "
            f"parallel {gpus // parallelism.model_parallel}"
        )
    heads = int(hf_config["num_attention_heads"])
    groups = int(hf_config.get("num_key_value_heads") or heads)
    if heads % parallelism.tensor or groups % parallelism.tensor:
        return f"tensor {parallelism.tensor} does not divide {heads} heads and {groups} key-value heads"
    if int(hf_config["num_hidden_layers"]) % parallelism.pipeline:
        return f"pipeline {parallelism.pipeline} does not divide {hf_config['num_hidden_layers']} layers"
    window = window_of(hf_config)
    if parallelism.context > 1 and window is not None and window.tokens < config.sequence_length:
        return f"context {parallelism.context} cannot split the model's sliding window of {window.tokens} tokens"
    return None


def _too_much(layout: Layout, usable: float) -> str:
    m = layout.memory
    parts = {"weights": m.weights, "gradients": m.gradients, "optimizer": m.optimizer, "activations": m.activations}
    return f"needs {layout.gib:.1f} of {usable:.1f} GiB: " + ", ".join(f"{k} {v / GIB:.1f}" for k, v in parts.items())


def _search(
    shape: Shape,
    hf_config: Mapping[str, Any],
    config: TrainingConfig,
    gpus: int,
    usable: float,
    refusals: list[str],
) -> Layout | None:
    """The layout that fits with the least communication; what does not fit is added to ``refusals``."""
    for parallelism in _parallelisms(config.parallelism, gpus):
        smallest: Layout | None = None
        problem: str | None = None
        for recompute, micro_batch_size in itertools.product(("none", "full"), (8, 4, 2, 1)):
            found = _impossible(hf_config, config, parallelism, gpus, micro_batch_size)
            if found:
                problem = found
                continue
            smallest = _layout(shape, config, parallelism, gpus, micro_batch_size, recompute)
            if smallest.gib <= usable:
                return smallest
        if smallest:
            refusals.append(f"{smallest.words()}: {_too_much(smallest, usable)}")
        elif problem:
            refusals.append(f"tensor {parallelism.tensor}, pipeline {parallelism.pipeline}: {problem}")
    return None


def _parallelisms(declared: Parallelism, gpus: int) -> Iterator[Parallelism]:
    """Tensor and pipeline sizes, fewest ranks for one copy of the model first; tensor parallelism stays in a node."""
    powers = [2**n for n in range(gpus.bit_length()) if 2**n <= gpus]
    pairs = [(t, p) for t in powers if t <= _NODE for p in powers if t * p * declared.context <= gpus]
    for tensor, pipeline in sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1])):
        yield declared.model_copy(
            update={
                "tensor": tensor,
                "pipeline": pipeline,
                "sequence_parallel": tensor > 1,
                "distributed_optimizer": True,
            }
        )
