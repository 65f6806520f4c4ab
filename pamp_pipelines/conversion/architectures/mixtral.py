"""Mixtral: Mistral's attention, and experts in the place of the feed-forward network of every layer.

Layer: transformers `modeling_mixtral.py`; names on disk are those of the original release.
"""

from __future__ import annotations

from pamp_pipelines.conversion.architectures.dense import (
    ATTENTION,
    DERIVED,
    EMBEDDINGS,
    EXTRA_STATES,
    dense_arguments,
    dense_dimensions,
    dense_unsupported,
)
from pamp_pipelines.conversion.architectures.moe import (
    EXPERTS_EXTRA_STATES,
    expert_arguments,
    expert_dimensions,
    experts,
    top_one_unsupported,
)
from pamp_pipelines.conversion.architectures.table import Architecture, Config, Value, integer, number
from pamp_pipelines.conversion.architectures.window import WindowRule

_WINDOW = WindowRule("in all layers", lambda config: config.get("sliding_window"))
_EXPERT = "block_sparse_moe.experts.{expert}."


def _dimensions(config: Config) -> dict[str, int]:
    # MixtralConfig means 8 KV heads and 8 experts where the fields are absent
    sizes = dense_dimensions(config, kv_heads=None if "num_key_value_heads" in config else 8)
    return sizes | expert_dimensions(integer(config, "num_local_experts", 8), sizes["F"])


def _arguments(config: Config) -> dict[str, Value]:
    sizes = _dimensions(config)
    epsilon = number(config, "rms_norm_eps", 1e-5)  # the default of MixtralConfig alone
    experts_too = dense_arguments(config, sizes, _WINDOW) | expert_arguments(config, sizes, None)
    return experts_too | {"layernorm_epsilon": epsilon}


def _unsupported(config: Config) -> list[str]:
    return dense_unsupported(config, _WINDOW) + top_one_unsupported(config, pre_softmax=False)


MIXTRAL = Architecture(
    name="mixtral",
    model_types=("mixtral",),
    classes=("MixtralForCausalLM",),
    entries=EMBEDDINGS
    + ATTENTION
    + experts("block_sparse_moe.gate.weight", *(f"{_EXPERT}{name}.weight" for name in ("w1", "w3", "w2"))),
    extra_states=EXTRA_STATES + EXPERTS_EXTRA_STATES,
    derived=DERIVED,
    dimensions=_dimensions,
    megatron_arguments=_arguments,
    unsupported=_unsupported,
    window=_WINDOW.window,
    window_text=_WINDOW.text,
)
