"""The vocabulary in which an architecture describes how its Hugging Face tensors lie inside a Megatron checkpoint.

An architecture is data: a tuple of `Entry`. Import, export, the coverage proof and the static verification all walk the
same entries, so a mapping is written once and both directions follow from it.

Shape legend (axis names used by every table; `dimensions(config)` gives their sizes)
    L layers          decoder layers: one tensor for each, stacked along a leading axis where all layers are alike
    P predict         layers of multi-token prediction; each has keys of its own
    E experts         routed experts: one tensor for each, stacked along the axis after L
    H hidden          model width
    F ffn             width of the feed-forward layer; 2F gate and up projections one after the other
    M moe ffn         width of one routed expert;  S width of the shared experts together;  2M, 2S as 2F
    V vocab           rows of the embedding in the HF model (a checkpoint may hold more: padding)
    D head            width of one attention head
    Q queries         query heads x D;   K keys (or values) = KV heads x D;   QKV = Q + 2K
    A, B              ranks of the compressed queries and of the compressed keys and values (latent attention)
    B+R               B and the rotary part of the key;  U up-projected queries;  W up-projected keys and values
    O                 heads x width of a value head;   1 a single row;   2H two model widths
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pamp_pipelines.errors import InputError

Config = Mapping[str, Any]
"""The content of a Hugging Face `config.json`."""

Value = bool | int | float | str
"""The value of one Megatron argument."""


@dataclass(frozen=True)
class Window:
    """A sliding window: how many tokens a token sees, itself included, and whether each layer has it."""

    tokens: int
    layers: tuple[bool, ...]


class Op(enum.Enum):
    """How the rows of the sources are arranged in the checkpoint tensor. Closed set; each is a permutation of rows."""

    IDENTITY = "identity"
    """One source, same rows."""
    JOIN = "join"
    """Sources one after the other (gate, up)."""
    GROUP_QKV = "group_qkv"
    """Per KV head g: the query heads of g, then its key head, then its value head (Megatron's fused attention)."""


@dataclass(frozen=True)
class When:
    """In which models an entry exists, in words and as a test of config.json."""

    text: str
    holds: Callable[[Config], bool]


class Layers(enum.Enum):
    """In which layers of a model an entry exists."""

    ALL = "all"
    DENSE = "dense"
    """Those with one feed-forward network."""
    SPARSE = "sparse"
    """Those with routed experts."""


@dataclass(frozen=True)
class Source:
    """A Hugging Face tensor and its axes; `{layer}` and `{expert}` stand where the name has their indices."""

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One tensor of the checkpoint and where its rows come from.

    key: name in the checkpoint, without layer index. Axes that begin with "L" or "P" stand for one tensor per layer,
        an "E" after it for one per expert.
    tensor_parallel_axis: the axis of the tensor of one layer and expert that Megatron splits over tensor-parallel
        ranks, None where every rank holds the whole tensor.
    padded: whether Megatron may append rows of vocabulary padding.
    tied_to: the HF tensor that stands in for the source where the model ties its embeddings; a copy of it that an HF
        file holds nevertheless must be equal.
    predict_copy: HF name under which each layer of multi-token prediction repeats the tensor.
    aliases: other keys under which older or local-spec checkpoints hold the same tensor.
    """

    key: str
    axes: tuple[str, ...]
    sources: tuple[Source, ...]
    op: Op = Op.IDENTITY
    tensor_parallel_axis: int | None = None
    layers: Layers = Layers.ALL
    when: When = When("always", lambda _: True)
    padded: bool = False
    tied_to: str = ""
    predict_copy: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def per_layer(self) -> bool:
        return self.axes[0] in ("L", "P")

    @property
    def predicts(self) -> bool:
        """Whether it belongs to multi-token prediction."""
        return self.axes[0] == "P"

    @property
    def per_expert(self) -> bool:
        return self.axes[1:2] == ("E",) and "{expert}" in self.sources[0].name

    @property
    def block_axes(self) -> tuple[str, ...]:
        """Axes of the tensor of one layer and expert."""
        return self.axes[self.per_layer + self.per_expert :]


@dataclass(frozen=True)
class Architecture:
    """Everything the project knows about one family of models.

    model_types, classes: values of `model_type` and `architectures` in config.json that name this family.
    extra_states: modules for which Megatron, with or without Transformer Engine, asks for an `_extra_state` object; a
        name under `decoder.layers.` stands for one object per layer, one under `experts.experts.` for one per expert.
    derived: regular expressions of tensors that some HF files carry although they follow from the config.
    dimensions: sizes of the axes of the shape legend.
    megatron_arguments: Megatron argument `dest` names and values that make Megatron build the model of this config.
    unsupported: what Megatron's training loop cannot represent, one sentence each; empty where it can train the model.
    sparse_layers: for each layer, whether it has routed experts; None where all layers are alike: Megatron then stacks
        their tensors, and otherwise gives each layer keys of its own.
    window: the sliding window; None where every token of every layer sees all tokens before it.
    window_text: in words, which layers have one.
    """

    name: str
    model_types: tuple[str, ...]
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]
    extra_states: tuple[str, ...]
    dimensions: Callable[[Config], dict[str, int]]
    megatron_arguments: Callable[[Config], dict[str, Value]]
    unsupported: Callable[[Config], list[str]]
    derived: tuple[str, ...] = ()
    sparse_layers: Callable[[Config], tuple[bool, ...] | None] = lambda _: None
    window: Callable[[Config], Window | None] = lambda _: None
    window_text: str = ""

    def entries_for(self, config: Config) -> tuple[Entry, ...]:
        """The entries that exist in a model of this config."""
        return tuple(e for e in self.entries if e.when.holds(config))

    def is_derived(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.derived)


_MOST = 10_000


def tied(config: Config) -> bool:
    """Whether the output layer is the embedding. Absent means no, the default of every class in the tables."""
    return bool(config.get("tie_word_embeddings", False))


UNTIED = When("tie_word_embeddings is false", lambda config: not tied(config))


def integer(config: Config, field: str, default: int | None = None) -> int:
    """A positive integer field of config.json.

    Raises:
        InputError: the field is absent (and has no default), or is not a positive integer.
    """
    value = config.get(field)
    if value is None:
        value = default
    if value is None:
        raise InputError(f"config.json: {field} is missing; the architecture cannot be derived without it")
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InputError(f"config.json: {field} is {value!r}; expected a positive integer")
    return value


def repeated(field: str, value: int) -> int:
    """The value of a field that says how many there are of what has tensors of its own: layers, experts.

    All of them are listed to plan a conversion, so a number that no model has would only be refused after hours.

    Raises:
        InputError: there would be more than 10,000.
    """
    if value > _MOST:
        raise InputError(f"config.json: {field} is {value}; at most {_MOST:,} are supported")
    return value


def count(config: Config, field: str, default: int = 0) -> int:
    """An integer field of config.json that may be 0; absent and null mean the default.

    Raises:
        InputError: it is negative or no integer.
    """
    value = config.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"config.json: {field} is {value!r}; expected 0 or a positive integer")
    return value


def number(config: Config, field: str, default: float) -> float:
    """A positive real field of config.json; transformers writes some of them as integers, some as floats."""
    value = config.get(field)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise InputError(f"config.json: {field} is {value!r}; expected a positive number")
    return float(value)
