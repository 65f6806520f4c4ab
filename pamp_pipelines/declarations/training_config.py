"""A training config: what is trained on, for how long, and how."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from pamp_pipelines.declarations.base import Check, Count, Declaration, Inconsistent, Name, Owner
from pamp_pipelines.declarations.cron import cron_problem
from pamp_pipelines.declarations.megatron_flags import passthrough_problems

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8_delayed", "fp8_tensorwise", "fp8_blockwise"]
StatePrecision = Literal["fp32", "bf16"]
BF16_STATE: frozenset[Precision] = frozenset({"bf16", "fp8_delayed"})
"""With which ``state_precision`` may be bf16."""
Probability = Annotated[float, Field(ge=0, lt=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
MAX_SEED = 2**31 - 1
"""NumPy takes seeds below 2**32, and Megatron adds multiples of the ranks to that of the run."""


class Optimizer(Declaration):
    """AdamW and its learning-rate schedule. Megatron's own defaults are never inherited."""

    lr: PositiveFloat
    """Peak learning rate."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of the decay."""
    decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "cosine"
    """Shape of the decay after warm-up."""
    warmup_iterations: NonNegativeInt = 0
    """Iterations of linear warm-up from 0."""
    warmup_tokens: Count | None = None
    """The same in tokens, instead of ``warmup_iterations``; rounded down to whole global batches."""
    decay_iterations: PositiveInt | None = None
    """Iterations after which ``min_lr`` is reached, warm-up included; default: those of the run."""
    decay_tokens: Count | None = None
    """The same in tokens, instead of ``decay_iterations``; rounded down to whole global batches."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Decoupled weight decay; biases and norms are exempt."""
    beta1: Probability = 0.9
    """Decay of the first moment."""
    beta2: Probability = 0.95
    """Decay of the second moment."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator."""
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """Global gradient norm that is clipped to; 0 clips nothing."""


class Dropout(Declaration):
    """Probabilities of dropping an activation. Megatron's default of 0.1 is never inherited."""

    hidden: Probability = 0.0
    """After attention and MLP."""
    attention: Probability = 0.0
    """On attention probabilities."""


class Parallelism(Declaration):
    """Sizes of the parallel groups; data parallelism is what the profile's processes leave."""

    tensor: PositiveInt = 1
    """Tensor-parallel size (tp): splits each layer. Must divide the attention heads."""
    pipeline: PositiveInt = 1
    """Pipeline-parallel size (pp): splits the layers. Must divide their number."""
    context: PositiveInt = 1
    """Context-parallel size (cp): splits the sequence."""
    expert: PositiveInt = 1
    """Expert-parallel size (ep): splits the experts of a mixture."""
    sequence_parallel: bool = False
    """Split norms and dropout along the sequence within a tensor-parallel group."""
    distributed_optimizer: bool = True
    """Split optimizer state over data-parallel ranks."""
    overlap_grad_reduce: bool = False
    """Reduce gradients while the backward pass runs."""
    overlap_param_gather: bool = False
    """Gather parameters while the forward pass runs. Needs ``overlap_grad_reduce``."""

    @property
    def model_parallel(self) -> int:
        """Processes that hold one copy of the model."""
        return self.tensor * self.pipeline * self.context


class Offload(Declaration):
    """What waits in the host's memory instead of the GPU's, at the cost of copies over the bus."""

    optimizer: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the optimizer's state, and of its step, that the host takes. Needs the distributed optimizer."""
    activation_layers: NonNegativeInt = 0
    """Layers, counted from the first, whose activations the host keeps for the backward pass: fewer than the model has.
    Neither with pipeline stages nor with recomputation."""


class Checkpointing(Declaration):
    """When the run is saved and what is kept."""

    interval: PositiveInt | None = None
    """Iterations between saves; a killed run loses at most this many. Exactly one of it and ``interval_tokens``."""
    interval_tokens: Count | None = None
    """The same in tokens; rounded down to whole global batches."""
    minutes: PositiveFloat | None = None
    """Save as well when the last save is this many minutes ago, looked at when metrics are logged."""
    asynchronous: bool = False
    """Write in a process of its own while training goes on; the save costs a copy to the host's memory."""
    keep_every: PositiveInt | None = None
    """Keep each checkpoint whose step is a multiple of this; others are rolling resume points."""
    keep_every_tokens: Count | None = None
    """The same in tokens, instead of ``keep_every``; rounded down to whole global batches."""
    keep_last: PositiveInt = 2
    """Newest resume points that stay on disk."""


class Validation(Declaration):
    """Loss on every held-out token of the blend's corpora, over the same windows each time."""

    interval: PositiveInt | None = None
    """Iterations between validations; there is always one at the end. Exactly one of it and ``interval_tokens``."""
    interval_tokens: Count | None = None
    """The same in tokens; rounded down to whole global batches."""
    step_0: Literal["compare", "report"] = "compare"
    """What is done with the loss of imported weights before the first step: end the run where it is not Hugging Face's
    on the same windows, which is computed first, or only report it."""


class EvaluationCadence(Declaration):
    """Which checkpoints are exported and scored."""

    every: PositiveInt | None = None
    """Keep and score each checkpoint whose step is a multiple of this."""
    every_tokens: Count | None = None
    """The same in tokens, instead of ``every``; rounded down to whole global batches."""
    final: bool = True
    """Keep and score the last checkpoint."""
    steps: tuple[PositiveInt, ...] = ()
    """Further steps to keep and score."""


class Limits(Declaration):
    """What a run's curves may do before a check warns. They change no result."""

    validation_gap: PositiveFloat = 0.10
    """Share of the training loss by which the validation loss may differ at the end."""
    loss_spike: PositiveFloat = 0.25
    """Share by which a loss may exceed the mean of the twenty logged before it."""
    grad_norm_growth: PositiveFloat = 10.0
    """Factor by which the median gradient norm of the last tenth may exceed that of the tenth after warm-up."""


class TrainingConfig(Declaration):
    """One file in ``assets/training_configs``; its stem is the partition key."""

    description: str = ""
    """What it is for. Not part of the data version."""
    owners: tuple[Owner, ...] = ()
    """Who answers for it: e-mail addresses or ``team:name``. Not part of the data version."""
    models: tuple[Name, ...] | None = None
    """Models it may train; default: every declared model."""
    corpora: Annotated[dict[Name, PositiveFloat], Field(min_length=1)]
    """The blend: corpus to weight, in shares of tokens; normalised to 1."""
    max_epochs: dict[Name, PositiveFloat] = {}
    """How often a corpus may be read at most, e.g. ``{wiki: 4}``; default: as often as the blend asks for."""
    on_exhausted: Literal["refuse", "stop", "repeat"] = "refuse"
    """What a run does that would read a corpus more often: not start, end after the last whole global batch within the
    limits (the schedule is that of the shorter run), or read it again all the same."""
    document_attention: Literal["cross", "masked"] = "cross"
    """Whether tokens see those of earlier documents in their sample. ``masked``: attention and positions begin again
    at each document, and its first token is not predicted from the one before."""
    sequence_length: PositiveInt
    """Tokens in a training sample."""
    tokens: Count | None = None
    """Tokens to train on; rounded down to whole global batches. Exactly one of ``tokens`` and ``iterations``."""
    iterations: Count | None = None
    """Optimizer steps. Exactly one of ``tokens`` and ``iterations``."""
    horizon: Count | None = None
    """Length that the order of the data and the schedule are made for, in the unit of the run's own length; default:
    that length. A run that ends before its horizon can be made longer later, and goes on where it ended."""
    global_batch_size: PositiveInt
    """Samples in an optimizer step, over all processes."""
    micro_batch_size: PositiveInt = 1
    """Samples in one forward pass of one process; gradient accumulation makes up the rest."""
    optimizer: Optimizer
    """AdamW and its learning-rate schedule."""
    dropout: Dropout = Dropout()
    """Regularisation; off by default, as Llama and Qwen are trained."""
    precision: Precision = "bf16"
    """Arithmetic of the forward and backward pass; fp8 needs Hopper or newer. ``tf32`` keeps everything in float32 and
    rounds the factors of matrix products to 10 bits; under ``fp32`` no GPU may do that."""
    state_precision: StatePrecision = "fp32"
    """How gradients and both moments of AdamW are kept. With ``bf16`` a parameter takes 10 bytes instead of 18, two of
    them the bits that its bf16 weight lacks of the float32 one. Needs CUDA, the distributed optimizer, and
    ``precision`` bf16 or fp8_delayed."""
    parallelism: Parallelism = Parallelism()
    """Sizes of the parallel groups."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations to compute again in the backward pass instead of keeping them."""
    offload: Offload = Offload()
    """What waits in the host's memory instead of the GPU's."""
    checkpoint: Checkpointing
    """When the run is saved and what is kept."""
    validation: Validation
    """Loss on the held-out documents."""
    evaluation: EvaluationCadence = EvaluationCadence()
    """Which checkpoints are exported and scored."""
    limits: Limits = Limits()
    """What a run's curves may do before a check warns."""
    profile: Name = "local"
    """Compute profile in ``resources/``. Not part of the data version."""
    cron: str | None = None
    """Cron expression of a scheduled retraining, in UTC. Not part of the data version."""
    retrain_on_new_data: bool = False
    """Train a new version when the text of a corpus of the blend has changed. Not part of the data version."""
    seed: Annotated[int, Field(ge=1, le=MAX_SEED)] = 1234
    """Seed of initialisation and dropout; Megatron refuses 0."""
    data_seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1234
    """Seed of the data order."""
    determinism: Literal["exact", "fast"] = "exact"
    """``exact``: equal runs give equal bits, at some cost on GPUs; ``fast``: the fastest kernels."""
    cross_entropy: Literal["native", "transformer_engine"] = "native"
    """Kernel of the loss on GPUs. ``transformer_engine`` is faster and needs half the memory of the logits, in bf16 or
    fp32 and with ``determinism: fast``; Megatron's command line refuses it, and the two agree to bf16 rounding."""
    log_interval: PositiveInt = 1
    """Iterations between entries of ``metrics.jsonl`` and TensorBoard."""
    megatron_args: dict[str, Any] = {}
    """Any further Megatron argument by name, without the leading dashes, e.g. ``{init-method-std: 0.02}``."""

    # What one field says of itself is checked with the field, so that it is told together with what others lack.

    @field_validator("models")
    @classmethod
    def _some_models(cls, models: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if models is not None and not models:
            raise Inconsistent(("", "is empty: list models, or leave the field out to train every declared one"))
        return models

    @field_validator("max_epochs")
    @classmethod
    def _of_the_blend(cls, max_epochs: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        foreign = [name for name in max_epochs if name not in info.data.get("corpora", max_epochs)]
        if foreign:
            raise Inconsistent(*((name, "is no corpus of the blend: name one of `corpora`") for name in foreign))
        return max_epochs

    @field_validator("cron")
    @classmethod
    def _comes(cls, cron: str | None) -> str | None:
        if cron is not None and (problem := cron_problem(cron)):
            raise Inconsistent(("", problem))
        return cron

    @field_validator("megatron_args")
    @classmethod
    def _known_to_megatron(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if problems := passthrough_problems(arguments):
            raise Inconsistent(*problems.items())
        return arguments

    def checks(self) -> Iterable[Check]:
        units = (partial(self._unit_problems, field) for field in TOKEN_FIELDS)
        return (
            self._length_problems,
            self._horizon_problems,
            *units,
            self._optimizer_offload_problems,
            self._activation_offload_problems,
            self._state_arithmetic_problems,
            self._state_layout_problems,
            self._rate_problems,
            self._overlap_problems,
        )

    def _length_problems(self) -> Iterator[tuple[str, str]]:
        if (self.tokens is None) == (self.iterations is None):
            yield "", "give exactly one of `tokens` and `iterations`"
        elif self.tokens is not None and self.train_iterations < 1:
            batch = self.sequence_length * self.global_batch_size
            yield "tokens", f"{self.tokens} is less than one global batch of {batch} tokens: raise `tokens`"

    def _horizon_problems(self) -> Iterator[tuple[str, str]]:
        length = self.iterations if self.iterations is not None else self.tokens
        if self.horizon is not None and length is not None and self.horizon < length:
            yield (
                "horizon",
                f"{self.horizon} is less than the {length} of the run: the schedule and the order of the data end "
                "there. To train on, let another config continue from the exported model, with a warm-up of its own",
            )

    def _optimizer_offload_problems(self) -> Iterator[tuple[str, str]]:
        if self.offload.optimizer and not self.parallelism.distributed_optimizer:
            yield "offload.optimizer", "needs `parallelism.distributed_optimizer: true`"

    def _activation_offload_problems(self) -> Iterator[tuple[str, str]]:
        if self.offload.activation_layers and self.parallelism.pipeline > 1:
            yield "offload.activation_layers", "cannot be combined with `parallelism.pipeline` above 1"
        if self.offload.activation_layers and self.recompute != "none":
            message = f"cannot be combined with `recompute: {self.recompute}`: take one of them"
            yield "offload.activation_layers", message

    def _rate_problems(self) -> Iterator[tuple[str, str]]:
        schedule = self.optimizer
        if schedule.min_lr > schedule.lr:
            yield "optimizer.min_lr", f"{schedule.min_lr} is above `optimizer.lr` {schedule.lr}: lower it"

    def _overlap_problems(self) -> Iterator[tuple[str, str]]:
        if self.parallelism.overlap_param_gather and not self.parallelism.overlap_grad_reduce:
            yield "parallelism.overlap_param_gather", "needs `overlap_grad_reduce: true`"

    @property
    def train_iterations(self) -> int:
        """Optimizer steps, resolved from ``tokens`` when those are given."""
        if self.iterations is not None:
            return self.iterations
        assert self.tokens is not None
        return self.tokens // self.tokens_per_iteration

    @property
    def horizon_iterations(self) -> int | None:
        """``horizon`` in optimizer steps."""
        if self.horizon is None or self.iterations is not None:
            return self.horizon
        return self.horizon // self.tokens_per_iteration

    @property
    def blend(self) -> dict[str, float]:
        """Corpora with weights that sum to 1, sorted by corpus."""
        total = sum(self.corpora.values())
        return {corpus: self.corpora[corpus] / total for corpus in sorted(self.corpora)}

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens in a global batch."""
        return self.sequence_length * self.global_batch_size

    def _unit_problems(self, field: "TokenField") -> Iterator[tuple[str, str]]:
        """A cadence that is given in both units, in neither where one is needed, or in too few tokens."""
        tokens, iterations = self._value(field.tokens), self._value(field.iterations)
        if tokens is not None and iterations:
            yield field.tokens, f"give it or `{field.iterations.rpartition('.')[2]}`, not both"
        elif field.needed and tokens is None and iterations is None:
            yield field.iterations, f"missing: give it or `{field.tokens.rpartition('.')[2]}`"
        elif tokens is not None and tokens < self.tokens_per_iteration:
            message = f"{tokens} is less than one global batch of {self.tokens_per_iteration} tokens: raise it"
            yield field.tokens, message

    def _state_arithmetic_problems(self) -> Iterator[tuple[str, str]]:
        if self.state_precision != "fp32" and self.precision not in BF16_STATE:
            why = (
                "Megatron would keep whole float32 copies beside"
                if self.precision.startswith("fp8")
                else "gradients and weights are of one kind"
            )
            message = f"{self.state_precision} with `precision: {self.precision}`: {why}; take bf16 or fp8_delayed"
            yield "state_precision", message

    def _state_layout_problems(self) -> Iterator[tuple[str, str]]:
        if self.state_precision == "fp32":
            return
        if not self.parallelism.distributed_optimizer:
            yield "state_precision", "bf16 needs `parallelism.distributed_optimizer: true`"
        if self.offload.optimizer:
            yield (
                "state_precision",
                "bf16 cannot be combined with `offload.optimizer`, whose steps on the host are in fp32",
            )

    def _value(self, field: str) -> int | None:
        part, _, name = field.partition(".")
        value: int | None = getattr(getattr(self, part), name)
        return value

    def in_iterations(self) -> Self:
        """The same config with every cadence in iterations, rounded down, and no field in tokens but ``tokens``."""
        parts: dict[str, Any] = {}
        for field in TOKEN_FIELDS:
            tokens = self._value(field.tokens)
            if tokens is None:
                continue
            part, _, name = field.iterations.partition(".")
            update = {name: tokens // self.tokens_per_iteration, field.tokens.partition(".")[2]: None}
            parts[part] = parts.get(part, getattr(self, part)).model_copy(update=update)
        return self.model_copy(update=parts)

    def remainders(self) -> dict[str, int]:
        """Tokens that rounding down to whole global batches leaves over, by the field that was given in tokens."""
        given = {"tokens": self.tokens, **{field.tokens: self._value(field.tokens) for field in TOKEN_FIELDS}}
        return {name: tokens % self.tokens_per_iteration for name, tokens in given.items() if tokens is not None}


class TokenField(NamedTuple):
    """A number of iterations that may be declared in tokens instead."""

    iterations: str
    tokens: str
    needed: bool = False
    """Whether one of the two must be given."""


TOKEN_FIELDS = (
    TokenField("optimizer.warmup_iterations", "optimizer.warmup_tokens"),
    TokenField("optimizer.decay_iterations", "optimizer.decay_tokens"),
    TokenField("checkpoint.interval", "checkpoint.interval_tokens", needed=True),
    TokenField("checkpoint.keep_every", "checkpoint.keep_every_tokens"),
    TokenField("validation.interval", "validation.interval_tokens", needed=True),
    TokenField("evaluation.every", "evaluation.every_tokens"),
)
