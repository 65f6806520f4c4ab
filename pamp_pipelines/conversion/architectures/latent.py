"""Building blocks of multi-head latent attention (DeepSeek): keys, sizes and arguments. Axis names: table.py.

Key names: megatron-core 0.19.2 `MLASelfAttention` under Transformer Engine; the aliases are those of its local layers.
HF's weights of queries and keys are interleaved (`rope_interleave`) as Megatron takes them: nothing is reordered.
"""

from __future__ import annotations

import math

from pamp_pipelines.conversion.architectures.rope import rope_of, yarn_attention_factor
from pamp_pipelines.conversion.architectures.table import Config, Entry, Source, Value, When, count, integer

_LAYERS = "decoder.layers."
_ATTENTION = _LAYERS + "self_attention."
_HF = "model.layers.{layer}."

COMPRESSED_QUERIES = When("q_lora_rank is set", lambda config: bool(_query_rank(config)))
PLAIN_QUERIES = When("q_lora_rank is null", lambda config: not _query_rank(config))

_QUERY_RANK = 1536
"""What DeepseekV2Config and DeepseekV3Config mean where the field is absent; null means queries are not compressed."""


def _query_rank(config: Config) -> int:
    return count(config, "q_lora_rank") if "q_lora_rank" in config else _QUERY_RANK


LATENT_ATTENTION = (
    Entry(
        _LAYERS + "input_layernorm.weight",
        ("L", "H"),
        (Source(_HF + "input_layernorm.weight", ("H",)),),
    ),
    Entry(
        _ATTENTION + "linear_q_proj.weight",
        ("L", "U", "H"),
        (Source(_HF + "self_attn.q_proj.weight", ("U", "H")),),
        tensor_parallel_axis=0,
        when=PLAIN_QUERIES,
    ),
    Entry(
        _ATTENTION + "linear_q_down_proj.weight",
        ("L", "A", "H"),
        (Source(_HF + "self_attn.q_a_proj.weight", ("A", "H")),),
        when=COMPRESSED_QUERIES,
    ),
    Entry(
        _ATTENTION + "linear_q_up_proj.layer_norm_weight",
        ("L", "A"),
        (Source(_HF + "self_attn.q_a_layernorm.weight", ("A",)),),
        when=COMPRESSED_QUERIES,
        aliases=(_ATTENTION + "q_layernorm.weight",),
    ),
    Entry(
        _ATTENTION + "linear_q_up_proj.weight",
        ("L", "U", "A"),
        (Source(_HF + "self_attn.q_b_proj.weight", ("U", "A")),),
        tensor_parallel_axis=0,
        when=COMPRESSED_QUERIES,
    ),
    Entry(
        _ATTENTION + "linear_kv_down_proj.weight",
        ("L", "B+R", "H"),
        (Source(_HF + "self_attn.kv_a_proj_with_mqa.weight", ("B+R", "H")),),
    ),
    Entry(
        _ATTENTION + "linear_kv_up_proj.layer_norm_weight",
        ("L", "B"),
        (Source(_HF + "self_attn.kv_a_layernorm.weight", ("B",)),),
        aliases=(_ATTENTION + "kv_layernorm.weight",),
    ),
    Entry(
        _ATTENTION + "linear_kv_up_proj.weight",
        ("L", "W", "B"),
        (Source(_HF + "self_attn.kv_b_proj.weight", ("W", "B")),),
        tensor_parallel_axis=0,
    ),
    Entry(
        _ATTENTION + "linear_proj.weight",
        ("L", "H", "O"),
        (Source(_HF + "self_attn.o_proj.weight", ("H", "O")),),
        tensor_parallel_axis=1,
    ),
)

LATENT_EXTRA_STATES = (
    _LAYERS + "input_layernorm",
    *(
        _ATTENTION + name
        for name in (
            "linear_q_proj",
            "linear_q_down_proj",
            "linear_q_up_proj",
            "linear_kv_down_proj",
            "linear_kv_up_proj",
            "linear_proj",
            "q_layernorm",
            "kv_layernorm",
        )
    ),
)

LATENT_NORM_EPSILON = 1e-6
"""Epsilon of the norms of the compressed queries, keys and values, whatever `rms_norm_eps` is (DeepseekV3Attention)."""


def latent_dimensions(config: Config) -> dict[str, int]:
    """Sizes of the axes of attention. `head_dim` and `num_key_value_heads` of config.json have no meaning here."""
    heads = integer(config, "num_attention_heads")
    plain = integer(config, "qk_nope_head_dim", 128)
    rotary = integer(config, "qk_rope_head_dim", 64)
    value = integer(config, "v_head_dim", 128)
    rank = integer(config, "kv_lora_rank", 512)
    return {
        "D": plain + rotary,
        "A": _query_rank(config),
        "B": rank,
        "B+R": rank + rotary,
        "U": heads * (plain + rotary),
        "W": heads * (plain + value),
        "O": heads * value,
    }


def latent_arguments(config: Config) -> dict[str, Value]:
    """Megatron arguments of latent attention, with its rotary embedding.

    What the command line cannot say (the constants of YaRN but the factor) is set by the model provider.
    """
    arguments: dict[str, Value] = {
        "multi_latent_attention": True,
        "kv_lora_rank": integer(config, "kv_lora_rank", 512),
        "qk_head_dim": integer(config, "qk_nope_head_dim", 128),
        "qk_pos_emb_head_dim": integer(config, "qk_rope_head_dim", 64),
        "v_head_dim": integer(config, "v_head_dim", 128),
        "qk_layernorm": True,
        "rope_type": "rope",
        "rotary_scaling_factor": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.0,
    }
    if rank := _query_rank(config):
        arguments["q_lora_rank"] = rank
    rope = rope_of(config)
    if rope.kind == "yarn":
        arguments |= {
            "rope_type": "yarn",
            "rotary_scaling_factor": float(rope.scaling.get("factor") or 0.0),
            "mscale": float(rope.scaling.get("mscale") or 1.0),
            "mscale_all_dim": float(rope.scaling.get("mscale_all_dim") or 0.0),
        }
    return arguments


def latent_unsupported(config: Config) -> list[str]:
    """Refusals of latent attention."""
    rope = rope_of(config)
    problems = []
    if rope.kind in ("linear", "llama3"):
        problems.append(f"rope scaling of type {rope.kind!r}: Megatron's latent attention has only YaRN")
    if rope.kind == "yarn":
        factor, scaling = rope.scaling.get("factor"), rope.scaling
        if isinstance(factor, int | float) and factor > 0:  # otherwise refused with the other settings of rope
            implied = _megatron_factor(float(factor), scaling.get("mscale"), scaling.get("mscale_all_dim"))
            if abs(implied - yarn_attention_factor(rope)) > 1e-9:
                problems.append("rope scaling attention_factor: Megatron derives it from factor and mscale alone")
        if scaling.get("truncate") is False:
            problems.append("rope scaling truncate is false: Megatron's latent attention rounds the range")
    if config.get("rope_interleave") is False:
        problems.append("rope_interleave is false: Megatron's latent attention takes interleaved weights")
    return problems


def _megatron_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    def scale(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(mscale or 1.0) / scale(mscale_all_dim or 0.0)
