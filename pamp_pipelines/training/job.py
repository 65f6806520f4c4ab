"""What the training worker is told: plain data, absolute paths, no defaults that change a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from pamp_pipelines.conversion.architectures import Window, window_of
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.training_config import (
    Checkpointing,
    Dropout,
    Limits,
    Offload,
    Optimizer,
    Parallelism,
    Precision,
    StatePrecision,
    Validation,
)
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.manifest import ArtifactRef

NonNegativeInt = Annotated[int, Field(ge=0)]


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WeightedShards(_Plain):
    """One pair of shards of the training blend."""

    corpus: str = ""
    """Whose it is; empty for shards that were given by path."""
    prefix: Path
    """Megatron IndexedDataset prefix: the path without `.bin` and `.idx`."""
    weight: Annotated[float, Field(gt=0.0)]
    """Share of the training tokens drawn from it, relative to the other weights."""


class HeldOutShards(_Plain):
    """The held-out split of one corpus."""

    corpus: str
    prefix: Path


class DataPhase(_Plain):
    """Samples of a run that are drawn in one order."""

    first_sample: NonNegativeInt
    """Samples of the run before it."""
    samples: PositiveInt
    seed: NonNegativeInt
    """Of their order."""


def _nats(loss: float | None) -> str:
    return "none" if loss is None else f"{loss:.6f}"


class Reference(_Plain):
    """What the imported model makes of the held-out text, by Hugging Face: what Megatron has to show at step 0."""

    source: Path
    """Hugging Face directory."""
    losses: dict[str, float | None]
    """Mean loss in nats by corpus; None where it is not finite."""
    tolerance: Annotated[float, Field(gt=0)]
    """Largest difference, relative to Hugging Face's loss."""

    def problem(self, losses: Mapping[str, float]) -> str | None:
        """Why Megatron's losses, by corpus, are not these; None where they are."""
        apart = [
            f"{corpus}: Megatron {_nats(losses.get(corpus))}, Hugging Face {_nats(theirs)}"
            for corpus, theirs in self.losses.items()
            if theirs is None or not abs(losses.get(corpus, math.nan) - theirs) <= self.tolerance * abs(theirs)
        ]
        if not apart:
            return None
        return f"{'; '.join(apart)} nats a token (they may differ by {self.tolerance:.2g} of it)"


class TrainJob(_Plain):
    """Everything one version of a training run needs. Token ids and sizes are data, never read from a tokenizer."""

    name: str
    """`model/training_config/v0001`, for logs and events."""
    run_dir: Path
    """The version directory: `job.json events.jsonl metrics.jsonl logs/ tensorboard/ checkpoints/`."""
    hf_config: dict[str, Any]
    """The content of the model's Hugging Face `config.json`."""
    template_dir: Path
    """The `hf_template/` of the megatron_checkpoint artifact."""
    pretrained_checkpoint: Path | None
    """Directory with `latest_checkpointed_iteration.txt` to start from; None starts from random weights."""
    source: Path | None = None
    """Hugging Face directory that `pretrained_checkpoint` was imported from."""
    reference: Reference | None = None
    """What the run has to show before its first step; None compares nothing."""
    vocab_size: PositiveInt
    """Rows of the embedding before padding: `config.vocab_size`, never the tokenizer's length."""
    eod_id: NonNegativeInt
    """Token that ends a document in the shards."""

    train: tuple[WeightedShards, ...] = Field(min_length=1)
    heldout: tuple[HeldOutShards, ...] = ()

    sequence_length: PositiveInt
    """Tokens per sample."""
    iterations: PositiveInt
    """Optimizer steps of the whole run, counted from its start and not from the last resume."""
    horizon: PositiveInt | None = None
    """Steps that the order of the data and the schedule are made for; None: `iterations`."""
    phases: tuple[DataPhase, ...] = ()
    """Of a run that goes on with one whose order of the data had ended: one after the other over all `iterations`. The
    schedule stays the first one's. Empty: one phase of `data_seed`."""
    extends: Path | None = None
    """Version directory of the finished run that this one goes on with."""
    global_batch_size: PositiveInt
    """Samples per optimizer step, over all processes."""
    micro_batch_size: PositiveInt
    """Samples per forward pass of one process."""
    optimizer: Optimizer
    dropout: Dropout
    document_attention: Literal["cross", "masked"] = "cross"
    """Whether tokens of a sample see those of the documents before theirs."""
    precision: Precision
    state_precision: StatePrecision = "fp32"
    """How gradients and AdamW's moments are kept."""
    parallelism: Parallelism
    recompute: Literal["none", "selective", "full"]
    offload: Offload = Offload()
    checkpoint: Checkpointing
    validation: Validation
    cadence: tuple[NonNegativeInt, ...] = ()
    """Steps whose checkpoint must exist and be kept, also off the interval; the last step is always saved."""
    limits: Limits = Limits()
    """What the curves may do before a check warns."""
    seed: PositiveInt
    """Seed of initialisation and dropout; Megatron refuses 0."""
    data_seed: NonNegativeInt
    """Seed of the order of training samples."""
    determinism: Literal["exact", "fast"]
    """`exact`: a run repeated or resumed on the same layout gives the same bits; `fast`: whatever is fastest."""
    cross_entropy: Literal["native", "transformer_engine"] = "native"
    """Kernel of the loss on GPUs."""
    log_interval: PositiveInt
    """Iterations between two metric records."""
    world_size: PositiveInt
    """Processes of the whole run: nodes x processes per node."""
    megatron_args: dict[str, Any] = {}
    """Further Megatron flags by name, without dashes in front."""

    id: str = ""
    """Identity of the run, known before it starts; empty for a job that was not resolved from declarations."""
    inputs: tuple[ArtifactRef, ...] = ()
    """The shards, and the megatron_checkpoint."""
    declaration: dict[str, Any] = {}
    """The declarations that the job was resolved from, for the manifest."""
    profile: ComputeProfile = ComputeProfile()
    """Limits and environment of the processes."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainJob:
        model_parallel = self.parallelism.model_parallel
        if self.world_size % model_parallel:
            raise ValueError(
                f"world_size {self.world_size} is not a multiple of tensor x pipeline x context = {model_parallel}"
            )
        if self.global_batch_size % (self.micro_batch_size * self.data_parallel):
            raise ValueError(
                f"global_batch_size {self.global_batch_size} is not a multiple of micro_batch_size "
                f"{self.micro_batch_size} x data parallel {self.data_parallel}"
            )
        if self.optimizer.warmup_iterations >= self.iterations:
            raise ValueError(
                f"optimizer.warmup_iterations {self.optimizer.warmup_iterations} does not end before the last of "
                f"{self.iterations} iterations"
            )
        if self.checkpoint.interval is None or self.validation.interval is None:
            raise ValueError("checkpoint.interval and validation.interval must be resolved into iterations")
        parallel = self.parallelism
        if self.document_attention == "masked" and parallel.context > 1:
            raise ValueError("document_attention masked cannot be split along the sequence: set parallelism.context 1")
        # Transformer Engine's exchange of keys and values in a ring knows no window
        if parallel.context > 1 and (window := self.window):
            raise ValueError(
                f"the model's sliding window of {window.tokens} tokens cannot be split along the sequence: set "
                "parallelism.context 1"
            )
        if self.document_attention == "masked" and parallel.pipeline > 1 and self.micro_batch_size > 1:
            raise ValueError("document_attention masked with parallelism.pipeline above 1 needs micro_batch_size 1")
        layers = self.hf_config.get("num_hidden_layers", 0)
        if (offloaded := self.offload.activation_layers) and offloaded >= layers:
            raise ValueError(f"offload.activation_layers {offloaded} is not below the {layers} layers of the model")
        if self.phases:
            ends = [0, *(phase.first_sample + phase.samples for phase in self.phases)]
            wanted = self.iterations * self.global_batch_size
            if self.horizon or [phase.first_sample for phase in self.phases] != ends[:-1] or ends[-1] != wanted:
                raise ValueError(f"phases {self.phases} are not one after the other up to sample {wanted}")
        late = [step for step in self.cadence if step > self.iterations]
        if late:
            raise ValueError(f"cadence steps {late} lie after the last iteration {self.iterations}")
        paths = [self.run_dir, self.template_dir, *(s.prefix for s in self.train), *(s.prefix for s in self.heldout)]
        relative = [str(path) for path in paths if not path.is_absolute()]
        if relative:
            raise ValueError(f"paths must be absolute: {relative}")
        return self

    @property
    def window(self) -> Window | None:
        """The model's sliding window, where a sequence is longer."""
        window = window_of(self.hf_config)
        return None if window is None or window.tokens >= self.sequence_length else window

    @property
    def data_parallel(self) -> int:
        """Number of model replicas, each of which sees its own samples."""
        return self.world_size // self.parallelism.model_parallel

    def mode(self, resumed_from: int | None) -> Literal["scratch", "continue", "resume"]:
        """How an attempt starts: from random weights, from imported ones, or from a checkpoint of the run itself."""
        if resumed_from:
            return "resume"
        return "scratch" if self.pretrained_checkpoint is None else "continue"

    @property
    def decay_iterations(self) -> int:
        """Iterations after which the learning rate has reached its minimum."""
        return self.optimizer.decay_iterations or self.scheduled_samples // self.global_batch_size

    @property
    def scheduled_samples(self) -> int:
        """Training samples that the schedule is made for."""
        if self.phases:
            return self.phases[0].samples
        return (self.horizon or self.iterations) * self.global_batch_size

    @property
    def ordered(self) -> tuple[DataPhase, ...]:
        """The orders of the data, which may be made for more samples than the run takes."""
        return self.phases or (DataPhase(first_sample=0, samples=self.scheduled_samples, seed=self.data_seed),)

    @property
    def checkpoints_dir(self) -> Path:
        """Where Megatron writes `iter_*` and its tracker file."""
        return self.run_dir / "checkpoints"

    @property
    def events_path(self) -> Path:
        """The event log that the orchestrator tails."""
        return self.run_dir / "events.jsonl"

    @property
    def metrics_path(self) -> Path:
        """One JSON object per logged iteration."""
        return self.run_dir / "metrics.jsonl"

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens the model is trained on in one optimizer step."""
        return self.global_batch_size * self.sequence_length


def read_job(path: Path) -> TrainJob:
    """The job in a JSON file.

    Raises:
        InputError: the file cannot be read or does not describe a job.
    """
    try:
        return TrainJob.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a training job: {error}") from error
