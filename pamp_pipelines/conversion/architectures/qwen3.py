"""Qwen3 (dense): Llama's layer with RMSNorm over each query and key head, and a head width of its own.

Layer: transformers `modeling_qwen3.py`.
"""

from __future__ import annotations

from pamp_pipelines.conversion.architectures.dense import (
    ATTENTION,
    DERIVED,
    EMBEDDINGS,
    EXTRA_STATES,
    GATED_MLP,
    QUERY_KEY_NORM,
    QUERY_KEY_NORM_EXTRA_STATES,
    biases_unsupported,
    dense_arguments,
    dense_dimensions,
    dense_unsupported,
)
from pamp_pipelines.conversion.architectures.table import Architecture, Config, Value
from pamp_pipelines.conversion.architectures.window import UPPER_LAYERS


def _dimensions(config: Config) -> dict[str, int]:
    # Qwen3Config: absent fields mean 32 KV heads and heads of 128, whatever hidden_size / num_attention_heads is.
    return dense_dimensions(config, kv_heads=None if "num_key_value_heads" in config else 32, head=128)


def _arguments(config: Config) -> dict[str, Value]:
    return dense_arguments(config, _dimensions(config), UPPER_LAYERS) | {"qk_layernorm": True}


def _unsupported(config: Config) -> list[str]:
    return dense_unsupported(config, UPPER_LAYERS) + biases_unsupported(config, "attention_bias")


QWEN3 = Architecture(
    name="qwen3",
    model_types=("qwen3",),
    classes=("Qwen3ForCausalLM",),
    entries=EMBEDDINGS + ATTENTION + QUERY_KEY_NORM + GATED_MLP,
    extra_states=EXTRA_STATES + QUERY_KEY_NORM_EXTRA_STATES,
    derived=DERIVED,
    dimensions=_dimensions,
    megatron_arguments=_arguments,
    unsupported=_unsupported,
    window=UPPER_LAYERS.window,
    window_text=UPPER_LAYERS.text,
)
