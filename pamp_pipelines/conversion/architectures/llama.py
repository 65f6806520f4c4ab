"""Llama 2, 3 and 3.1 and the models that share their layers (SmolLM2), and Mistral, which adds a sliding window.

Layer: transformers `modeling_llama.py`, `modeling_mistral.py`.
"""

from __future__ import annotations

from pamp_pipelines.conversion.architectures.dense import (
    ATTENTION,
    DERIVED,
    EMBEDDINGS,
    EXTRA_STATES,
    GATED_MLP,
    biases_unsupported,
    dense_arguments,
    dense_dimensions,
    dense_unsupported,
)
from pamp_pipelines.conversion.architectures.table import Architecture, Config, Value
from pamp_pipelines.conversion.architectures.window import WindowRule

_MISTRAL_WINDOW = WindowRule("in all layers", lambda config: config.get("sliding_window", 4096))


def _llama_arguments(config: Config) -> dict[str, Value]:
    return dense_arguments(config, dense_dimensions(config))


def _llama_unsupported(config: Config) -> list[str]:
    return dense_unsupported(config) + biases_unsupported(config, "attention_bias", "mlp_bias")


def _mistral_dimensions(config: Config) -> dict[str, int]:
    # MistralConfig, unlike LlamaConfig, means 8 where the field is absent; an explicit null means "as many as heads".
    return dense_dimensions(config, kv_heads=None if "num_key_value_heads" in config else 8)


def _mistral_arguments(config: Config) -> dict[str, Value]:
    return dense_arguments(config, _mistral_dimensions(config), _MISTRAL_WINDOW)


def _mistral_unsupported(config: Config) -> list[str]:
    return dense_unsupported(config, _MISTRAL_WINDOW)


LLAMA = Architecture(
    name="llama",
    model_types=("llama",),
    classes=("LlamaForCausalLM",),
    entries=EMBEDDINGS + ATTENTION + GATED_MLP,
    extra_states=EXTRA_STATES,
    derived=DERIVED,
    dimensions=dense_dimensions,
    megatron_arguments=_llama_arguments,
    unsupported=_llama_unsupported,
)

MISTRAL = Architecture(
    name="mistral",
    model_types=("mistral",),
    classes=("MistralForCausalLM",),
    entries=EMBEDDINGS + ATTENTION + GATED_MLP,
    extra_states=EXTRA_STATES,
    derived=DERIVED,
    dimensions=_mistral_dimensions,
    megatron_arguments=_mistral_arguments,
    unsupported=_mistral_unsupported,
    window=_MISTRAL_WINDOW.window,
    window_text=_MISTRAL_WINDOW.text,
)
