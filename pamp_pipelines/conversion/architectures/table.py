"""The vocabulary in which an architecture describes how its Hugging Face tensors lie inside a Megatron checkpoint.

An architecture is data: a tuple of `Entry`. Import, export, the coverage proof and the static verification all walk the
same entries, so a mapping is written once and both directions follow from it.

Shape legend (axis names used by every table; `dimensions(config)` gives their sizes)
    L layers          number of decoder layers (leading axis of a stacked checkpoint tensor)
    H hidden          model width
    F ffn             width of the feed-forward layer; 2F gate and up projections one after the other
    V vocab           rows of the embedding in the HF model (a checkpoint may hold more: padding)
    D head            width of one attention head
    Q queries         query heads x D;   K keys (or values) = KV heads x D;   QKV = Q + 2K
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


class Op(enum.Enum):
    """How the rows of the sources are arranged in the checkpoint tensor. Closed set; each is a permutation of rows."""

    IDENTITY = "identity"
    """One source, same rows."""
    JOIN = "join"
    """Sources one after the other (gate, up)."""
    GROUP_QKV = "group_qkv"
    """Per KV head g: the query heads of g, then its key head, then its value head (Megatron's fused attention)."""


class When(enum.Enum):
    """In which models an entry exists."""

    ALWAYS = "always"
    UNTIED = "untied"
    """Only where `tie_word_embeddings` is false."""


@dataclass(frozen=True)
class Source:
    """A Hugging Face tensor: its name, with `{layer}` where the layer index stands, and its axes."""

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One tensor of the checkpoint and where its rows come from.

    key: name in the checkpoint. Where `axes` starts with "L" the tensor is stacked over layers, one layer per index.
    tensor_parallel_axis: the axis of the unstacked tensor that Megatron splits over tensor-parallel ranks, None where
        every rank holds the whole tensor.
    padded: whether Megatron may append rows of vocabulary padding.
    tied_to: the HF tensor that stands in for the source where the model ties its embeddings; a copy of it that an HF
        file holds nevertheless must be equal.
    aliases: other keys under which older or local-spec checkpoints hold the same tensor.
    """

    key: str
    axes: tuple[str, ...]
    sources: tuple[Source, ...]
    op: Op = Op.IDENTITY
    tensor_parallel_axis: int | None = None
    when: When = When.ALWAYS
    padded: bool = False
    tied_to: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def stacked(self) -> bool:
        return self.axes[0] == "L"


@dataclass(frozen=True)
class Architecture:
    """Everything the project knows about one family of models.

    model_types, classes: values of `model_type` and `architectures` in config.json that name this family.
    extra_states: modules for which Megatron, with or without Transformer Engine, asks for an `_extra_state` object; a
        name under `decoder.layers.` stands for one object per layer.
    derived: regular expressions of tensors that some HF files carry although they follow from the config.
    dimensions: sizes of the axes of the shape legend.
    megatron_arguments: Megatron argument `dest` names and values that make Megatron build the model of this config.
    unsupported: what Megatron's training loop cannot represent, one sentence each; empty where it can train the model.
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

    def entries_for(self, config: Config) -> tuple[Entry, ...]:
        """The entries that exist in a model of this config."""
        return tuple(e for e in self.entries if e.when is When.ALWAYS or not tied(config))

    def is_derived(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.derived)


def tied(config: Config) -> bool:
    """Whether the output layer is the embedding. Absent means no, the default of every class in the tables."""
    return bool(config.get("tie_word_embeddings", False))


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


def number(config: Config, field: str, default: float) -> float:
    """A positive real field of config.json; transformers writes some of them as integers, some as floats."""
    value = config.get(field)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise InputError(f"config.json: {field} is {value!r}; expected a positive number")
    return float(value)
