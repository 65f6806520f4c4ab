"""Qwen2 and Qwen2.5: Llama's layer with a bias on the query, key and value projections.

Layer: transformers `modeling_qwen2.py`.
"""

from __future__ import annotations

from pamp_pipelines.conversion.architectures.dense import (
    ATTENTION,
    ATTENTION_BIAS,
    DERIVED,
    EMBEDDINGS,
    EXTRA_STATES,
    GATED_MLP,
    dense_arguments,
    dense_dimensions,
    dense_unsupported,
)
from pamp_pipelines.conversion.architectures.table import Architecture, Config, Value
from pamp_pipelines.conversion.architectures.window import UPPER_LAYERS


def _dimensions(config: Config) -> dict[str, int]:
    # Qwen2Config means 32 where the field is absent; an explicit null means "as many as heads".
    return dense_dimensions(config, kv_heads=None if "num_key_value_heads" in config else 32)


def _arguments(config: Config) -> dict[str, Value]:
    return dense_arguments(config, _dimensions(config), UPPER_LAYERS) | {"add_qkv_bias": True}


def _unsupported(config: Config) -> list[str]:
    return dense_unsupported(config, UPPER_LAYERS)


QWEN2 = Architecture(
    name="qwen2",
    model_types=("qwen2",),
    classes=("Qwen2ForCausalLM",),
    entries=EMBEDDINGS + ATTENTION + ATTENTION_BIAS + GATED_MLP,
    extra_states=EXTRA_STATES,
    derived=DERIVED,
    dimensions=_dimensions,
    megatron_arguments=_arguments,
    unsupported=_unsupported,
    window=UPPER_LAYERS.window,
    window_text=UPPER_LAYERS.text,
)
