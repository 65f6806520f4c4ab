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
    window_unsupported,
)
from pamp_pipelines.conversion.architectures.table import Architecture, Config, Value


def _dimensions(config: Config) -> dict[str, int]:
    # Qwen2Config means 32 where the field is absent; an explicit null means "as many as heads".
    return dense_dimensions(config, kv_heads=None if "num_key_value_heads" in config else 32)


def _arguments(config: Config) -> dict[str, Value]:
    return dense_arguments(config, _dimensions(config)) | {"add_qkv_bias": True}


def qwen_window(config: Config) -> int | None:
    """The sliding window in use: Qwen's config names one even where `use_sliding_window` is off."""
    return config.get("sliding_window", 4096) if config.get("use_sliding_window") else None


def _unsupported(config: Config) -> list[str]:
    return dense_unsupported(config) + window_unsupported(config, qwen_window(config))


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
)
