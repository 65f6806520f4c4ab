"""What the verification workers are told and what they answer: plain data, absolute paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from pamp_pipelines.lake.manifest import CheckResult


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tolerance(_Plain):
    """What two fp32 computations of the same model may differ by.

    Two correct implementations add in different orders: tiny models of every family differ by less than 1e-5 in their
    logits, SmolLM2-135M by less than 1e-4 at logits of about 20. An error of meaning (a rotary base, a swapped
    projection) moves logits by a good part of their own size.
    """

    logits: PositiveFloat = 1e-4
    """Largest absolute difference of two logits, in units of the largest absolute logit or of 1, whichever is more."""
    top1: PositiveFloat = 0.99
    """Least share of positions at which both models prefer the same token."""
    kl: PositiveFloat = 1e-6
    """Largest Kullback-Leibler divergence, in nats, of Megatron's next-token distribution from HF's at any position."""


class ParityCase(_Plain):
    """One Hugging Face directory and one Megatron checkpoint that should be the same model."""

    name: str
    source: Path
    """Hugging Face directory: config.json and safetensors. The HF side knows nothing else."""
    checkpoint: Path
    """Directory that holds `.metadata`. With `template` it is all that the Megatron side knows."""
    template: Path
    """Directory with the `config.json` that training would build its model from."""
    layers: PositiveInt | None = 2
    """How many layers, counted from the first, are compared; None compares the whole model."""
    tolerance: Tolerance = Tolerance()


class ParityJob(_Plain):
    """Several cases in one process: starting Megatron costs more than comparing a small model."""

    work: Path
    """Folder for logits, events and `results.json`."""
    cases: tuple[ParityCase, ...] = Field(min_length=1)


class CaseResult(_Plain):
    """The verdicts on one case."""

    name: str
    checks: tuple[CheckResult, ...]


class ParityResults(_Plain):
    """Content of `results.json`, in the order of the job's cases."""

    results: tuple[CaseResult, ...]


class HeldOut(_Plain):
    """One held-out split, as Megatron validated on it."""

    corpus: str
    prefix: Path
    """IndexedDataset prefix: the path without `.bin` and `.idx`."""
    megatron_loss: float | None
    """Megatron's mean loss over the split in nats per token; None where the run has no figure for this step."""


class LossJob(_Plain):
    """Recompute the validation loss of one kept checkpoint with Hugging Face."""

    name: str
    """`model/training_config/v0001/0000500`, for messages."""
    step: NonNegativeInt
    heldout: tuple[HeldOut, ...]
    sequence_length: PositiveInt
    precision: str
    """What the run computed in: fp32, bf16 …"""
    dtype: str
    """What Hugging Face computes in: that of the run where a CPU has it, else float32."""
    tolerance: PositiveFloat
    """Largest difference of the two losses, relative to Megatron's."""
    max_tokens: PositiveInt | None = None
    metadata: dict[str, Any] = {}
