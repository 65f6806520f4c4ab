"""Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B) and Qwen3-MoE: the attention of Qwen2 and Qwen3, with routed experts.

Layer: transformers `modeling_qwen2_moe.py`, `modeling_qwen3_moe.py`. A layer has experts unless `mlp_only_layers` names
it, every `decoder_sparse_step` layers.
"""

from __future__ import annotations

from dataclasses import replace

from pamp_pipelines.conversion.architectures.dense import (
    ATTENTION,
    ATTENTION_BIAS,
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
from pamp_pipelines.conversion.architectures.moe import (
    EXPERTS_EXTRA_STATES,
    SHARED_EXTRA_STATES,
    expert_arguments,
    expert_dimensions,
    in_dense_layers,
    projected_experts,
    shared_experts,
    top_one_unsupported,
)
from pamp_pipelines.conversion.architectures.table import (
    Architecture,
    Config,
    Entry,
    Layers,
    Source,
    Value,
    When,
    count,
    integer,
)
from pamp_pipelines.conversion.architectures.window import WindowRule, qwen_window

_EXPERTS = projected_experts()
_WINDOW2 = WindowRule(
    "with `use_sliding_window`, in the layers that `layer_types` names, or in layers 0, 2, … below `max_window_layers`",
    qwen_window,
    lambda layer, bound: layer % 2 == 0 and layer < bound,
)
_WINDOW3 = WindowRule("with `use_sliding_window`, in all layers", qwen_window)
_BIASED = When("qkv_bias is true", lambda config: bool(config.get("qkv_bias", True)))
_SHARED_GATE = Entry(
    "decoder.layers.mlp.shared_experts.gate_weight",
    ("L", "1", "H"),
    (Source("model.layers.{layer}.mlp.shared_expert_gate.weight", ("1", "H")),),
    layers=Layers.SPARSE,
)


def sparse_layers(config: Config) -> tuple[bool, ...] | None:
    """Which layers have experts; None where all have."""
    step = integer(config, "decoder_sparse_step", 1)
    dense = set(config.get("mlp_only_layers") or ())
    layers = integer(config, "num_hidden_layers")
    sparse = tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
    return None if all(sparse) else sparse


def _dimensions2(config: Config) -> dict[str, int]:
    # Qwen2MoeConfig: 16 KV heads, 60 experts of width 1408, shared ones of 5632 where the fields are absent
    sizes = dense_dimensions(config, kv_heads=None if "num_key_value_heads" in config else 16)
    sizes |= expert_dimensions(integer(config, "num_experts", 60), integer(config, "moe_intermediate_size", 1408))
    shared = integer(config, "shared_expert_intermediate_size", 5632)
    return sizes | {"S": shared, "2S": 2 * shared, "1": 1}


def _dimensions3(config: Config) -> dict[str, int]:
    # Qwen3MoeConfig: 4 KV heads, 128 experts of width 768 where the fields are absent
    sizes = dense_dimensions(config, kv_heads=None if "num_key_value_heads" in config else 4)
    return sizes | expert_dimensions(integer(config, "num_experts", 128), integer(config, "moe_intermediate_size", 768))


def _pre_softmax(config: Config) -> bool:
    """Whether the weights of the chosen experts stay as the softmax over all experts gave them."""
    return not config.get("norm_topk_prob", False)


def _common(config: Config, sizes: dict[str, int], default_topk: int, window: WindowRule) -> dict[str, Value]:
    return (
        dense_arguments(config, sizes, window)
        | expert_arguments(config, sizes, sparse_layers(config))
        | {
            "moe_router_pre_softmax": _pre_softmax(config),
            "moe_router_topk": count(config, "num_experts_per_tok", default_topk),
        }
    )


def _arguments2(config: Config) -> dict[str, Value]:
    sizes = _dimensions2(config)
    return _common(config, sizes, 4, _WINDOW2) | {
        "add_qkv_bias": _BIASED.holds(config),
        "moe_shared_expert_intermediate_size": sizes["S"],
        "moe_shared_expert_gate": True,
    }


def _arguments3(config: Config) -> dict[str, Value]:
    return _common(config, _dimensions3(config), 8, _WINDOW3) | {"qk_layernorm": True}


def _unsupported2(config: Config) -> list[str]:
    return dense_unsupported(config, _WINDOW2) + top_one_unsupported(config, _pre_softmax(config))


def _unsupported3(config: Config) -> list[str]:
    problems = dense_unsupported(config, _WINDOW3) + top_one_unsupported(config, _pre_softmax(config))
    return problems + biases_unsupported(config, "attention_bias")


QWEN2_MOE = Architecture(
    name="qwen2_moe",
    model_types=("qwen2_moe",),
    classes=("Qwen2MoeForCausalLM",),
    entries=EMBEDDINGS
    + ATTENTION
    + tuple(replace(entry, when=_BIASED) for entry in ATTENTION_BIAS)
    + in_dense_layers(GATED_MLP)
    + _EXPERTS
    + shared_experts("mlp.shared_expert")
    + (_SHARED_GATE,),
    extra_states=EXTRA_STATES + EXPERTS_EXTRA_STATES + SHARED_EXTRA_STATES,
    derived=DERIVED,
    dimensions=_dimensions2,
    megatron_arguments=_arguments2,
    unsupported=_unsupported2,
    window=_WINDOW2.window,
    window_text=_WINDOW2.text,
    sparse_layers=sparse_layers,
)

QWEN3_MOE = Architecture(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    classes=("Qwen3MoeForCausalLM",),
    entries=EMBEDDINGS + ATTENTION + QUERY_KEY_NORM + in_dense_layers(GATED_MLP) + _EXPERTS,
    extra_states=EXTRA_STATES + QUERY_KEY_NORM_EXTRA_STATES + EXPERTS_EXTRA_STATES,
    derived=DERIVED,
    dimensions=_dimensions3,
    megatron_arguments=_arguments3,
    unsupported=_unsupported3,
    window=_WINDOW3.window,
    window_text=_WINDOW3.text,
    sparse_layers=sparse_layers,
)
