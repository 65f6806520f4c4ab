"""DeepSeek-V2(-Lite), DeepSeek-V3 and R1, and Moonlight, which is DeepSeek-V3 without compressed queries.

Layer: transformers `modeling_deepseek_v2.py`, `modeling_deepseek_v3.py`; the layers of multi-token prediction, which
transformers leaves out: the `inference/` folder of the DeepSeek-V3 release.
"""

from __future__ import annotations

from dataclasses import replace

from pamp_pipelines.conversion.architectures.dense import (
    DERIVED,
    EMBEDDINGS,
    GATED_MLP,
    biases_unsupported,
    dense_unsupported,
)
from pamp_pipelines.conversion.architectures.latent import (
    LATENT_ATTENTION,
    LATENT_EXTRA_STATES,
    latent_arguments,
    latent_dimensions,
    latent_unsupported,
)
from pamp_pipelines.conversion.architectures.moe import (
    EXPERTS_EXTRA_STATES,
    SHARED_EXTRA_STATES,
    balancing,
    expert_arguments,
    expert_dimensions,
    in_dense_layers,
    projected_experts,
    shared_experts,
    top_one_unsupported,
)
from pamp_pipelines.conversion.architectures.rope import rope_arguments
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
    number,
    repeated,
    tied,
)

_HAS_SHARED = When("n_shared_experts is not 0", lambda config: _shared(config) > 0)
_HAS_BIAS = When(
    "topk_method is noaux_tc or absent", lambda config: config.get("topk_method", "noaux_tc") == "noaux_tc"
)
_PREDICTS = When("num_nextn_predict_layers is not 0", lambda config: count(config, "num_nextn_predict_layers") > 0)

_SPARSE = (
    *projected_experts(),
    *(replace(entry, when=_HAS_SHARED) for entry in shared_experts("mlp.shared_experts")),
)
_EXPERT_BIAS = Entry(
    "decoder.layers.mlp.router.expert_bias",
    ("L", "E"),
    (Source("model.layers.{layer}.mlp.gate.e_score_correction_bias", ("E",)),),
    layers=Layers.SPARSE,
    when=_HAS_BIAS,
)


def _predict_layer(entry: Entry) -> Entry:
    """An entry of a decoder layer as it is in a layer of multi-token prediction, whose layers all have experts."""
    key = entry.key.replace("decoder.layers.", "mtp.layers.transformer_layer.")
    aliases = tuple(alias.replace("decoder.layers.", "mtp.layers.transformer_layer.") for alias in entry.aliases)
    when = When(f"{_PREDICTS.text} and {entry.when.text}", lambda c: _PREDICTS.holds(c) and entry.when.holds(c))
    return replace(entry, key=key, axes=("P", *entry.axes[1:]), aliases=aliases, layers=Layers.ALL, when=when)


def _predict(name: str, source: str, *axes: str) -> Entry:
    sources = (Source(f"model.layers.{{layer}}.{source}.weight", axes),)
    return Entry(f"mtp.layers.{name}.weight", ("P", *axes), sources, when=_PREDICTS)


_PREDICTION = (
    _predict("enorm", "enorm", "H"),
    _predict("hnorm", "hnorm", "H"),
    replace(_predict("eh_proj", "eh_proj", "H", "2H"), tensor_parallel_axis=0),
    _predict("final_layernorm", "shared_head.norm", "H"),
    *(_predict_layer(entry) for entry in (*LATENT_ATTENTION, *_SPARSE, _EXPERT_BIAS)),
)
_EXTRA_STATES = (
    *LATENT_EXTRA_STATES,
    "decoder.layers.mlp.linear_fc1",
    "decoder.layers.mlp.linear_fc2",
    *EXPERTS_EXTRA_STATES,
    *SHARED_EXTRA_STATES,
    "decoder.final_layernorm",
)
_PREDICTION_EXTRA_STATES = (
    *(f"mtp.layers.{name}" for name in ("enorm", "hnorm", "eh_proj", "final_layernorm")),
    *(
        module.replace("decoder.layers.", "mtp.layers.transformer_layer.")
        for module in _EXTRA_STATES
        if module.startswith("decoder.layers.")
    ),
)


def _shared(config: Config) -> int:
    return count(config, "n_shared_experts", 2 if config.get("model_type") == "deepseek_v2" else 1)


def _sparse_layers(first_dense: int, config: Config) -> tuple[bool, ...]:
    dense = count(config, "first_k_dense_replace", first_dense)
    step = integer(config, "moe_layer_freq", 1)
    return tuple(i >= dense and i % step == 0 for i in range(integer(config, "num_hidden_layers")))


def _dimensions(config: Config, *, number_of_experts: int, width: int) -> dict[str, int]:
    hidden, ffn = integer(config, "hidden_size"), integer(config, "intermediate_size")
    moe = integer(config, "moe_intermediate_size", width)
    shared = moe * _shared(config)
    return {
        "L": repeated("num_hidden_layers", integer(config, "num_hidden_layers")),
        "P": repeated("num_nextn_predict_layers", count(config, "num_nextn_predict_layers")),
        "H": hidden,
        "2H": 2 * hidden,
        "F": ffn,
        "2F": 2 * ffn,
        "V": integer(config, "vocab_size"),
        **latent_dimensions(config),
        **expert_dimensions(integer(config, "n_routed_experts", number_of_experts), moe),
        "S": shared,
        "2S": 2 * shared,
    }


def _arguments(config: Config, sizes: dict[str, int], sparse: tuple[bool, ...]) -> dict[str, Value]:
    groups = count(config, "n_group", 1)
    arguments: dict[str, Value] = {
        "num_layers": sizes["L"],
        "hidden_size": sizes["H"],
        "ffn_hidden_size": sizes["F"],
        "num_attention_heads": integer(config, "num_attention_heads"),
        "group_query_attention": False,
        "vocab_size": sizes["V"],
        "max_position_embeddings": integer(config, "max_position_embeddings"),
        "normalization": "RMSNorm",
        "layernorm_epsilon": number(config, "rms_norm_eps", 1e-6),
        "swiglu": True,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "untie_embeddings_and_output_weights": not tied(config),
        "init_method_std": number(config, "initializer_range", 0.02),
        **rope_arguments(config),
        **latent_arguments(config),
        **expert_arguments(config, sizes, sparse),
        **balancing("seq_aux_loss" if config.get("seq_aux", True) else "aux_loss", config.get("aux_loss_alpha")),
    }
    if sizes["S"]:
        arguments["moe_shared_expert_intermediate_size"] = sizes["S"]
    if groups > 1:
        arguments |= {"moe_router_num_groups": groups, "moe_router_group_topk": integer(config, "topk_group")}
    return arguments


def _common_unsupported(config: Config, per_group: int) -> list[str]:
    """per_group: how many experts of a group HF adds up to choose groups; Megatron takes topk // topk_group."""
    problems = dense_unsupported(config) + latent_unsupported(config)
    problems += biases_unsupported(config, "attention_bias", "mlp_bias")
    if count(config, "n_group", 1) > 1:
        chosen = integer(config, "num_experts_per_tok", 8) // integer(config, "topk_group")
        if chosen != per_group:
            problems.append(
                f"num_experts_per_tok // topk_group is {chosen}: Megatron chooses expert groups by the sum of their "
                f"best {chosen}, this model by that of {per_group}"
            )
    return problems


# DeepSeek-V2 ---------------------------------------------------------------------------------------------------------


def _sparse2(config: Config) -> tuple[bool, ...]:
    return _sparse_layers(0, config)


def _dimensions2(config: Config) -> dict[str, int]:
    return _dimensions(config, number_of_experts=64, width=1407)


def _arguments2(config: Config) -> dict[str, Value]:
    arguments = _arguments(config, _dimensions2(config), _sparse2(config)) | {
        "moe_router_pre_softmax": True,
        "moe_router_topk_scaling_factor": number(config, "routed_scaling_factor", 1.0),
    }
    if config.get("topk_method", "greedy") == "greedy":
        arguments.pop("moe_router_num_groups", None)
        arguments.pop("moe_router_group_topk", None)
    return arguments


def _unsupported2(config: Config) -> list[str]:
    method = config.get("topk_method", "greedy")
    problems = _common_unsupported(config if method != "greedy" else {**config, "n_group": 1}, per_group=1)
    if method not in ("greedy", "group_limited_greedy"):
        problems.append(f"topk_method is {method!r}: expected greedy or group_limited_greedy")
    if config.get("norm_topk_prob"):
        problems.append("norm_topk_prob is true: transformers and the original code of DeepSeek-V2 disagree on it")
    return problems


DEEPSEEK_V2 = Architecture(
    name="deepseek_v2",
    model_types=("deepseek_v2",),
    classes=("DeepseekV2ForCausalLM",),
    entries=EMBEDDINGS + LATENT_ATTENTION + in_dense_layers(GATED_MLP) + _SPARSE,
    extra_states=_EXTRA_STATES,
    derived=DERIVED,
    dimensions=_dimensions2,
    megatron_arguments=_arguments2,
    unsupported=_unsupported2,
    sparse_layers=_sparse2,
)


# DeepSeek-V3 ---------------------------------------------------------------------------------------------------------


def _sparse3(config: Config) -> tuple[bool, ...]:
    return _sparse_layers(3, config)


def _dimensions3(config: Config) -> dict[str, int]:
    return _dimensions(config, number_of_experts=256, width=2048)


def _arguments3(config: Config) -> dict[str, Value]:
    return _arguments(config, _dimensions3(config), _sparse3(config)) | {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 1e-3,  # gamma of the DeepSeek-V3 report, 4.2
        "moe_router_topk_scaling_factor": number(config, "routed_scaling_factor", 2.5),
        "moe_router_topk": integer(config, "num_experts_per_tok", 8),
    }


def _unsupported3(config: Config) -> list[str]:
    problems = _common_unsupported(config, per_group=2)
    method = config.get("topk_method", "noaux_tc")
    if method != "noaux_tc":
        problems.append(f"topk_method is {method!r}: expected noaux_tc")
    if config.get("scoring_func", "sigmoid") != "sigmoid":
        problems.append(f"scoring_func is {config['scoring_func']!r}: expected sigmoid")
    if not config.get("norm_topk_prob", True):
        problems.append("norm_topk_prob is false: Megatron normalises the weights of a sigmoid router")
    return problems + top_one_unsupported(config, pre_softmax=True)


DEEPSEEK_V3 = Architecture(
    name="deepseek_v3",
    model_types=("deepseek_v3",),
    classes=("DeepseekV3ForCausalLM",),
    entries=EMBEDDINGS + LATENT_ATTENTION + in_dense_layers(GATED_MLP) + _SPARSE + (_EXPERT_BIAS,) + _PREDICTION,
    extra_states=_EXTRA_STATES + _PREDICTION_EXTRA_STATES,
    derived=DERIVED,
    dimensions=_dimensions3,
    megatron_arguments=_arguments3,
    unsupported=_unsupported3,
    sparse_layers=_sparse3,
)
