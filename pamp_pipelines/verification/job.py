"""What the verification workers are told and what they answer: plain data, absolute paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from pamp_pipelines.declarations.training_config import Precision
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.training.job import TrainJob


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tolerance(_Plain):
    """What two fp32 computations of the same model may differ by.

    Two correct implementations may add in different orders, which moves logits by less than 1e-6 of the largest: tiny
    models of every family came out at 2e-6 to 5e-6 with logits of about 7, SmolLM2-135M bit for bit equal. An error of
    meaning (a rotary base, a swapped projection) moves logits by a good part of their own size.
    """

    logits: PositiveFloat = 1e-5
    """Largest absolute difference of two logits, in units of the largest absolute logit or of 1, whichever is more."""
    top1: PositiveFloat = 0.99
    """Least share of positions at which both models prefer the same token."""
    kl: PositiveFloat = 1e-6
    """Largest Kullback-Leibler divergence, in nats, of Megatron's next-token distribution from HF's at any position."""


class Division(_Plain):
    """Among how many processes Megatron divides a model: sizes of its parallel groups, each replica counted once."""

    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    expert: PositiveInt = 1

    @property
    def processes(self) -> int:
        """Processes that it takes: as in training, the experts' weights are divided by tensor parallelism as well."""
        return self.tensor * self.pipeline * self.expert

    def __str__(self) -> str:
        return f"TP {self.tensor} PP {self.pipeline} EP {self.expert}"


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
    divisions: tuple[Division, ...] = ()
    """At which parallel sizes Megatron loads the checkpoint and saves it again."""


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


class DryRunJob(_Plain):
    """Build the model of a training job, without memory for its weights, and say what it is."""

    work: Path
    """Folder for events and `facts.json`."""
    train: TrainJob


class DryRunFacts(_Plain):
    """Content of `facts.json`: fields of `construction.Construction` and of `construction.Built`."""

    hf: dict[str, Any]
    megatron: dict[str, Any]


class Split(_Plain):
    """One held-out split, as Megatron validated on it."""

    corpus: str
    prefix: Path
    """IndexedDataset prefix: the path without `.bin` and `.idx`."""
    megatron_loss: float | None
    """Megatron's mean loss over the split in nats per token; None where it was not finite."""
    megatron_tokens: PositiveInt
    """Tokens that Megatron predicted."""


class LossJob(_Plain):
    """The validation loss of one kept checkpoint, to be recomputed with Hugging Face."""

    name: str
    """`model/training_config/v0001/0000500`."""
    step: NonNegativeInt
    splits: tuple[Split, ...]
    """Empty where the run has no validation figure for this step."""
    sequence_length: PositiveInt
    precision: Precision
    """What the run computed in."""


class LossWork(_Plain):
    """A LossJob on a directory, for the worker."""

    work: Path
    """Folder for events and `losses.json`."""
    model: Path
    """Hugging Face directory."""
    job: LossJob


class SplitLoss(_Plain):
    """What Hugging Face makes of one split."""

    corpus: str
    loss: float | None
    """Mean over the tokens, nats; None where it is not finite."""
    tokens: int


class Losses(_Plain):
    """Content of `losses.json`."""

    splits: tuple[SplitLoss, ...]
    device: str
    dtype: str
    """What Hugging Face computed in."""
    seconds: float
