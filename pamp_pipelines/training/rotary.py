"""Rotary embeddings as Hugging Face computes them, for the kinds of scaling that Megatron's arguments do not reach.

Formulas: transformers `modeling_rope_utils.py`. Frequencies are computed in float32 on the CPU, in the order of
operations of transformers, so that they are the same bit for bit.

Axes: F  frequencies: half the width of the rotary part of a head
"""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

from pamp_pipelines.conversion.architectures.rope import LLAMA3_SCALING, Rope, yarn_attention_factor

_BETA_FAST, _BETA_SLOW = 32.0, 1.0
"""What transformers takes where YaRN's bounds are not declared."""


def configure(transformer: Any, rope: Rope) -> None:
    """Set what Megatron reads from its transformer config while it builds attention: the constants of YaRN.

    Args:
        transformer: ``TransformerConfig``, or ``MLATransformerConfig``, whose embedding does YaRN by itself.
        rope: what config.json declares.
    """
    if rope.kind != "yarn":
        return
    factor = float(rope.scaling["factor"])
    if transformer.multi_latent_attention:
        transformer.original_max_position_embeddings = rope.scaling["original_max_position_embeddings"]
        transformer.beta_fast = float(rope.scaling.get("beta_fast") or _BETA_FAST)
        transformer.beta_slow = float(rope.scaling.get("beta_slow") or _BETA_SLOW)
        return
    # attention multiplies sine and cosine by 0.1 mscale ln(factor) + 1: the mscale that gives HF's factor
    wanted = yarn_attention_factor(rope)
    transformer.yarn_rotary_scaling_factor = factor
    transformer.yarn_mscale = (wanted - 1.0) / (0.1 * math.log(factor)) if factor > 1 else 1.0
    transformer.yarn_mscale_all_dim = 0.0


def scale(embedding: RotaryEmbedding, rope: Rope) -> None:
    """Replace the inverse frequencies of a model's rotary embedding by scaled ones, on its own device.

    For Llama 3.1's kind, Megatron's arguments reach neither the factor (``gpt_config_from_args`` drops it, 8 is used)
    nor the three other constants; for linear and YaRN it has no or another arithmetic.
    """
    width = 2 * len(embedding.inv_freq)
    if rope.kind == "default":
        return
    if rope.kind == "llama3":
        constants = {name: rope.scaling[name] for name in LLAMA3_SCALING}
        plain = RotaryEmbedding(width, 1.0, rotary_base=rope.theta, cp_group=embedding.cp_group)
        scaled_F = embedding._apply_scaling(plain.inv_freq.to(embedding.inv_freq.device), **constants)
    elif rope.kind == "linear":
        scaled_F = 1.0 / _powers_F(rope.theta, width) / float(rope.scaling["factor"])
    else:
        scaled_F = _yarn_F(rope, width)
    embedding.inv_freq = scaled_F.to(embedding.inv_freq.device)


def _powers_F(theta: float, width: int) -> torch.Tensor:
    return theta ** (torch.arange(0, width, 2, dtype=torch.int64, device="cpu").float() / width)


def _yarn_F(rope: Rope, width: int) -> torch.Tensor:
    """Above ``beta_fast`` rotations per context a frequency stays, below ``beta_slow`` it is divided by the factor."""
    scaling = rope.scaling
    original = scaling["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        return (width * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(rope.theta))

    low, high = dimension(scaling.get("beta_fast") or _BETA_FAST), dimension(scaling.get("beta_slow") or _BETA_SLOW)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    ramp_F = torch.clamp((torch.arange(width // 2, dtype=torch.float32, device="cpu") - low) / (high - low), 0, 1)
    kept_F = 1 - ramp_F
    powers_F = _powers_F(rope.theta, width)
    return 1.0 / (float(scaling["factor"]) * powers_F) * (1 - kept_F) + 1.0 / powers_F * kept_F
