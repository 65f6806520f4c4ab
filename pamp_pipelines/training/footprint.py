"""Bytes of a training run: on each GPU by part, and of one save.

The model of activations counts what Transformer Engine's layers and its attention keep for the backward pass. It was
checked against peaks measured on an H200 (docs/measurements.md); ``benchmarks/train_gpu.py`` repeats the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pamp_pipelines.declarations.training_config import Offload, Parallelism, Precision, StatePrecision
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.shape import Shape, shape_of

WHOLE: frozenset[Precision] = frozenset({"fp32", "tf32"})
"""Precisions whose weights are float32, with no master copies beside."""
_DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_LOGIT_BYTES = {"native": 9.4, "transformer_engine": 3.5}
"""Bytes for each logit at the peak: 16-bit ones, and with Megatron's own cross entropy float32 ones and exponentials.

Measured with 1.236 B parameters: 59 GiB in fp16 at micro batch 4 with the first, 47 and 74 GiB in bf16 at micro batch 4
and 8 with the second; 20.7 GiB are parameters and their state, 4.9 GiB a sample what the layers keep."""


_SCORES_AT_ONCE = 3.2
"""Copies of one layer's attention scores at the peak, besides those that each layer keeps: 115.1 GiB were measured for
1.236 B parameters in tf32 at micro batch 2, where everything else is 38.2 GiB and the scores of a layer are 4."""
_NOTHING = Offload()
_STATE: Mapping[StatePrecision, dict[str, Any]] = {
    "fp32": {},
    "bf16": {
        "use-precision-aware-optimizer": True,
        "grad-reduce-in-bf16": True,
        **dict.fromkeys(("main-grads-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"), "bf16"),
    },
}


@dataclass(frozen=True)
class PerParameter:
    """Bytes for one parameter."""

    weights: float
    gradients: float
    master: float
    moments: float


def per_parameter(
    precision: Precision, state_precision: StatePrecision, megatron_args: Mapping[str, Any]
) -> PerParameter:
    """How Megatron keeps parameters, gradients and AdamW's state.

    Args:
        precision: as declared.
        state_precision: as declared; what a megatron argument says of the same counts more.
        megatron_args: further arguments; those of the precision-aware optimizer and of gradient reduction count.
    """
    args = _STATE[state_precision] | {name.replace("_", "-"): value for name, value in megatron_args.items()}
    if precision in WHOLE:
        return PerParameter(weights=4, gradients=4, master=0, moments=8)
    gradients = 2 if args.get("grad-reduce-in-bf16") else 4
    if not args.get("use-precision-aware-optimizer"):
        return PerParameter(weights=2, gradients=gradients, master=4, moments=8)

    def size(name: str) -> int:
        return _DTYPE_BYTES[str(args.get(name, "fp32"))]

    # Transformer Engine keeps the 16 bits that a bf16 weight lacks, and no whole float32 copy
    master = 2 if size("main-params-dtype") == 4 and precision != "fp16" else size("main-params-dtype")
    return PerParameter(
        weights=2,
        gradients=min(gradients, size("main-grads-dtype")),
        master=master,
        moments=size("exp-avg-dtype") + size("exp-avg-sq-dtype"),
    )


@dataclass(frozen=True)
class Footprint:
    """Bytes on the fullest GPU, by part."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def footprint(
    shape: Shape,
    *,
    precision: Precision,
    state_precision: StatePrecision = "fp32",
    parallelism: Parallelism,
    data_parallel: int,
    micro_batch_size: int,
    micro_batches: int,
    sequence_length: int,
    recompute: str,
    cross_entropy: str,
    megatron_args: Mapping[str, Any],
    offload: Offload = _NOTHING,
) -> Footprint:
    """Peak memory of a rank of the first or last pipeline stage, whichever holds more.

    Args:
        shape: of the model.
        data_parallel: number of replicas.
        micro_batch_size: samples in a forward pass.
        micro_batches: forward passes in an optimizer step.
    """
    size = per_parameter(precision, state_precision, megatron_args)
    parameters = _parameters_of_rank(shape, parallelism)
    # Transformer Engine keeps fp8 copies of the weights, one for each direction of the product
    copies = 2 * parameters * shape.in_layers / shape.parameters if precision.startswith("fp8") else 0
    shards = data_parallel * parallelism.context if parallelism.distributed_optimizer else 1
    return Footprint(
        weights=round(parameters * size.weights + copies),
        gradients=round(parameters * size.gradients),
        optimizer=round(parameters * (size.master + size.moments) / shards * (1 - offload.optimizer)),
        activations=round(
            _activations(
                shape,
                precision,
                parallelism,
                tokens=micro_batch_size * sequence_length / parallelism.context,
                sequence_length=sequence_length,
                micro_batches=micro_batches,
                recompute=recompute,
                logit_bytes=_LOGIT_BYTES[cross_entropy],
                offloaded=offload.activation_layers if recompute == "none" else 0,
            )
        ),
    )


def gathered_bytes(shape: Shape, parallelism: Parallelism, processes: int, megatron_args: Mapping[str, Any]) -> int:
    """Bytes of a machine's own memory in which its processes put a save together.

    The format that any layout can load holds the float32 weights and moments of the distributed optimizer whole, and
    Megatron 0.19.2 gathers them on each data-parallel rank, or with an argument on the first alone.

    Args:
        processes: on the machine.
    """
    if not parallelism.distributed_optimizer:
        return 0
    names = {name.replace("_", "-") for name, value in megatron_args.items() if value}
    if "distrib-optim-fully-reshardable-mem-efficient" in names:
        processes = min(processes, parallelism.tensor * parallelism.pipeline)
    return round(12 * _parameters_of_rank(shape, parallelism) * processes)


def _parameters_of_rank(shape: Shape, parallelism: Parallelism) -> float:
    tensor, pipeline = parallelism.tensor, parallelism.pipeline
    dense = (shape.in_layers - shape.experts) / (tensor * pipeline)
    experts = shape.experts / (tensor * pipeline * parallelism.expert)
    # a tied output layer on another stage is a copy of the embedding
    ends = shape.embedding * (1 if pipeline > 1 or shape.tied else 2) / tensor
    return dense + experts + ends


def _activations(
    shape: Shape,
    precision: Precision,
    parallelism: Parallelism,
    *,
    tokens: float,
    sequence_length: int,
    micro_batches: int,
    recompute: str,
    logit_bytes: float,
    offloaded: int,
) -> float:
    """``tokens``: of a micro batch, on this context-parallel rank; ``offloaded``: layers that the host keeps."""
    tensor, pipeline = parallelism.tensor, parallelism.pipeline
    width = 4 if precision in WHOLE else 2
    # what sequence parallelism splits and tensor parallelism alone does not: both residuals and both norms' results
    across = 4 * width * shape.hidden / (tensor if parallelism.sequence_parallel else 1)
    fused = shape.queries + 2 * shape.keys  # values stay inside the fused projection's result
    rotated = shape.queries + shape.keys
    split = width * (fused + rotated + shape.queries + 3 * shape.ffn) / tensor
    if precision.startswith("fp8"):
        # inputs of the products are kept in fp8 instead; attention keeps its own result besides
        across -= 2 * shape.hidden / (tensor if parallelism.sequence_parallel else 1)
        split += (shape.queries - shape.ffn) / tensor
    # float32 has no fused attention: the scores of each head and pair of positions are kept
    scores = 4 * shape.heads * tokens * sequence_length / tensor if precision in WHOLE else 0
    layer = (across + split) * tokens + scores
    layers = shape.layers / pipeline
    in_flight = min(pipeline, micro_batches)
    if recompute == "full":
        kept = width * shape.hidden * tokens * layers * in_flight + layer
    else:
        kept = layer * (layers - offloaded) * in_flight
    # of the last stage, which holds one micro batch at a time
    logits = max(logit_bytes * shape.vocabulary * tokens / tensor, _SCORES_AT_ONCE * scores)
    return kept + logits if pipeline == 1 else max(kept, kept / in_flight + logits)


def checkpoint_bytes(job: TrainJob) -> int:
    """Bytes of one save of a job, from above."""
    return saved_bytes(shape_of(job.hf_config), job.precision, job.parallelism, job.world_size)


def saved_per_parameter(precision: Precision, *, distributed_optimizer: bool) -> int:
    """Bytes for one parameter in a checkpoint: its weight, both moments, and the float32 weight where there is another.

    The distributed optimizer saves all of its state in float32, however it keeps it (``state_precision``), and float32
    weights once more.
    """
    weight = 4 if precision in WHOLE else 2
    return weight + 8 + (4 if distributed_optimizer or precision not in WHOLE else 0)


def saved_bytes(shape: Shape, precision: Precision, parallelism: Parallelism, processes: int) -> int:
    """Bytes of one save, from above: what the formats add to each tensor is within the last summand."""
    padding = parallelism.tensor * 128 * shape.hidden * (1 if shape.tied else 2)
    each = saved_per_parameter(precision, distributed_optimizer=parallelism.distributed_optimizer)
    return round((shape.parameters + padding) * each * 1.02) + 2**19 * (1 + processes)
