"""What a constructed model is, in facts that Hugging Face's model and Megatron's must share.

Weights can be right and their meaning wrong: a rotary base, an epsilon, a bias that one side lacks. These facts are
read from the modules that were built, never from the arguments that asked for them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.conversion.architectures import architecture_of
from pamp_pipelines.declarations.training_config import Dropout
from pamp_pipelines.lake.manifest import CheckResult

CONSTRUCTION = "construction_matches_hf"
SCALE_DIGITS = 9
"""Decimals of the factor on sine and cosine that are compared: two formulas of YaRN may round apart."""


class Construction(BaseModel):
    """Facts of one constructed model, in the terms of Megatron's checkpoint keys.

    Attributes:
        layers: decoder layers of the whole model, also where only the first were built.
        parameters: elements of the parameters that were built, each counted once, without vocabulary padding.
        vocabulary: rows of the embedding, without padding.
        inverse_frequencies: SHA-256 of the float32 inverse frequencies of the rotary embedding, and their number.
        rotary_scale: factor on sine and cosine (1.0 but for YaRN).
        norm_epsilons: by norm, with layers left out: checkpoint key to epsilon.
        biases: checkpoint keys of all biases, with layers left out.
        tied: whether the output layer is the embedding.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: int
    parameters: int
    vocabulary: int
    inverse_frequencies: str
    rotary_scale: float
    norm_epsilons: dict[str, float]
    biases: tuple[str, ...]
    tied: bool


NO_DROPOUT = Dropout(hidden=0.0, attention=0.0)


class Built(BaseModel):
    """A Megatron model: the facts it shares with Hugging Face's, and those that only training has.

    Attributes:
        padded_vocabulary: rows of the embedding over all tensor-parallel ranks.
        dropout: probabilities in the constructed model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    facts: Construction
    padded_vocabulary: int
    dropout: Dropout

    def shown(self) -> dict[str, Any]:
        """All of it as one flat mapping."""
        return {
            **self.facts.model_dump(mode="json"),
            "padded_vocabulary": self.padded_vocabulary,
            "hidden_dropout": self.dropout.hidden,
            "attention_dropout": self.dropout.attention,
        }


def construction_verdict(hf: Construction, megatron: Built, declared: Dropout = NO_DROPOUT) -> CheckResult:
    """The check `construction_matches_hf`: every fact is equal, and dropout is what was declared.

    Args:
        hf: what Hugging Face built.
        megatron: what Megatron built.
        declared: the dropout that Megatron was asked for; its own default is 0.1.
    """
    ours, theirs = megatron.facts.model_dump(), hf.model_dump()
    wrong = [
        f"{fact.replace('_', ' ')}: Megatron {_short(ours[fact])}, HF {_short(theirs[fact])}"
        for fact in Construction.model_fields
        if ours[fact] != theirs[fact]
    ]
    if megatron.padded_vocabulary < hf.vocabulary:
        wrong.append(f"padded vocabulary {megatron.padded_vocabulary} is below HF's {hf.vocabulary} rows")
    if megatron.dropout != declared:
        wrong.append(f"dropout: Megatron {megatron.dropout!r}, declared {declared!r}")
    return CheckResult(
        name=CONSTRUCTION,
        passed=not wrong,
        description="; ".join(wrong) or "Megatron's model has HF's rotary frequencies, norms, biases and parameters.",
        metadata={"hf": theirs, "megatron": megatron.shown()},
    )


def _short(value: Any) -> Any:
    return value or "none" if isinstance(value, str | tuple | list | dict) else value


_LAYER = re.compile(r"(?<=layers\.)\d+\.")


class CheckpointNames:
    """Checkpoint keys, with layers left out, of the parameters of either model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._keys: dict[str, str] = {}
        for entry in architecture_of(config).entries:
            sources = [source.name.replace("{layer}.", "") for source in entry.sources]
            # the norm before the feed-forward network is one to HF, and has two keys where some layers have experts
            name = self._keys.get(sources[0], entry.key)
            self._keys |= dict.fromkeys((*sources, entry.key, *entry.aliases), name)

    def __getitem__(self, parameter: str) -> str:
        """The key of a parameter; its own name, without the layer, where the architecture's table does not know it."""
        name = _LAYER.sub("", parameter)
        return self._keys.get(name, name)


def frequencies_digest(values: bytes, count: int) -> str:
    """How inverse frequencies are told apart: their float32 bytes, little-endian."""
    return f"{hashlib.sha256(values).hexdigest()} ({count})"
