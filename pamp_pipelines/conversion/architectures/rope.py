"""Rotary position embeddings: what config.json declares, and whether Megatron's training loop applies it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pamp_pipelines.conversion.architectures.table import Config, Value
from pamp_pipelines.errors import InputError

LLAMA3_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""Constants of Llama 3.1's scaling."""


@dataclass(frozen=True)
class Rope:
    """theta: base of the inverse frequencies. kind: `default`, `llama3`, `yarn`, …; scaling: its parameters."""

    theta: float
    kind: str
    scaling: dict[str, Any]


def rope_of(config: Config) -> Rope:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before), as transformers does."""
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise InputError(f"config.json: rope_parameters is {parameters!r}; expected a mapping")
    theta = parameters.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        theta = 10000.0  # PreTrainedConfig.default_theta
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
        raise InputError(f"config.json: rope_theta is {theta!r}; expected a positive number")
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    scaling = {k: v for k, v in parameters.items() if k not in ("rope_theta", "rope_type", "type")}
    if kind in ("llama3", "yarn") and config.get("original_max_position_embeddings") is not None:
        scaling["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return Rope(float(theta), kind, scaling)


def rope_arguments(config: Config) -> dict[str, Value]:
    """Megatron arguments of the position embedding.

    `rotary_base` is an integer where it can be, since Megatron parses it as one: transformers writes 10000.0.
    """
    rope = rope_of(config)
    base: Value = int(rope.theta) if rope.theta.is_integer() else rope.theta
    arguments: dict[str, Value] = {
        "position_embedding_type": "rope",
        "rotary_base": base,
        "rotary_percent": 1.0,
        "use_rope_scaling": rope.kind == "llama3",
    }
    if rope.kind == "llama3":
        arguments["rope_scaling_factor"] = float(rope.scaling.get("factor", 0.0))
    return arguments


def rope_unsupported(config: Config) -> list[str]:
    """Rotary settings that Megatron's training loop would silently replace by its own."""
    rope = rope_of(config)
    problems = []
    partial = config.get("partial_rotary_factor", rope.scaling.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        problems.append(f"partial_rotary_factor is {partial}: the tables describe whole rotary heads")
    if rope.kind == "llama3":
        for field in LLAMA3_SCALING:
            value = rope.scaling.get(field)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                problems.append(f"rope scaling {field} is {value!r}: Llama 3's scaling needs a positive number")
    elif rope.kind in ("linear", "yarn"):
        factor = rope.scaling.get("factor")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            problems.append(f"rope scaling factor is {factor!r}: scaling of type {rope.kind!r} needs a positive number")
        original = rope.scaling.get("original_max_position_embeddings")
        if rope.kind == "yarn" and (isinstance(original, bool) or not isinstance(original, int) or original <= 0):
            problems.append(
                f"rope scaling original_max_position_embeddings is {original!r}: YaRN needs a positive integer"
            )
    elif rope.kind != "default":
        problems.append(f"rope scaling of type {rope.kind!r}: the model provider has linear, llama3 and yarn")
    return problems


def yarn_attention_factor(rope: Rope) -> float:
    """Factor on sine and cosine, as transformers' `_compute_yarn_parameters` derives it where it is not declared."""
    scaling, factor = rope.scaling, float(rope.scaling["factor"])
    if (declared := scaling.get("attention_factor")) is not None:
        return float(declared)

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(scaling["mscale"]) / scale(scaling["mscale_all_dim"])
    return scale(1.0)
