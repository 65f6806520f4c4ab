"""Building blocks shared by the dense decoders: keys of Megatron's GPTModel, common arguments, common refusals.

Key names and layouts: megatron-core 0.19.2, `GPTModel.sharded_state_dict`, written alike by the Transformer Engine and
the local layer spec. Axis names: see table.py.
"""

from __future__ import annotations

from pamp_pipelines.conversion.architectures.rope import rope_arguments, rope_unsupported
from pamp_pipelines.conversion.architectures.table import (
    UNTIED,
    Config,
    Entry,
    Op,
    Source,
    Value,
    integer,
    number,
    repeated,
    tied,
)
from pamp_pipelines.conversion.architectures.window import NO_WINDOW, WindowRule, window_arguments
from pamp_pipelines.errors import InputError

_LAYERS = "decoder.layers."
_HF = "model.layers.{layer}."

EMBEDDINGS = (
    Entry(
        "embedding.word_embeddings.weight",
        ("V", "H"),
        (Source("model.embed_tokens.weight", ("V", "H")),),
        tensor_parallel_axis=0,
        padded=True,
        predict_copy="model.layers.{layer}.embed_tokens.weight",
    ),
    Entry("decoder.final_layernorm.weight", ("H",), (Source("model.norm.weight", ("H",)),)),
    Entry(
        "output_layer.weight",
        ("V", "H"),
        (Source("lm_head.weight", ("V", "H")),),
        tensor_parallel_axis=0,
        when=UNTIED,
        padded=True,
        tied_to="model.embed_tokens.weight",
        predict_copy="model.layers.{layer}.shared_head.head.weight",
    ),
)

ATTENTION = (
    Entry(
        _LAYERS + "self_attention.linear_qkv.layer_norm_weight",
        ("L", "H"),
        (Source(_HF + "input_layernorm.weight", ("H",)),),
        aliases=(_LAYERS + "input_layernorm.weight",),
    ),
    Entry(
        _LAYERS + "self_attention.linear_qkv.weight",
        ("L", "QKV", "H"),
        (
            Source(_HF + "self_attn.q_proj.weight", ("Q", "H")),
            Source(_HF + "self_attn.k_proj.weight", ("K", "H")),
            Source(_HF + "self_attn.v_proj.weight", ("K", "H")),
        ),
        Op.GROUP_QKV,
        tensor_parallel_axis=0,
    ),
    Entry(
        _LAYERS + "self_attention.linear_proj.weight",
        ("L", "H", "Q"),
        (Source(_HF + "self_attn.o_proj.weight", ("H", "Q")),),
        tensor_parallel_axis=1,
    ),
)

ATTENTION_BIAS = (
    Entry(
        _LAYERS + "self_attention.linear_qkv.bias",
        ("L", "QKV"),
        (
            Source(_HF + "self_attn.q_proj.bias", ("Q",)),
            Source(_HF + "self_attn.k_proj.bias", ("K",)),
            Source(_HF + "self_attn.v_proj.bias", ("K",)),
        ),
        Op.GROUP_QKV,
        tensor_parallel_axis=0,
    ),
)

QUERY_KEY_NORM = (
    Entry(
        _LAYERS + "self_attention.q_layernorm.weight", ("L", "D"), (Source(_HF + "self_attn.q_norm.weight", ("D",)),)
    ),
    Entry(
        _LAYERS + "self_attention.k_layernorm.weight", ("L", "D"), (Source(_HF + "self_attn.k_norm.weight", ("D",)),)
    ),
)

GATED_MLP = (
    Entry(
        _LAYERS + "mlp.linear_fc1.layer_norm_weight",
        ("L", "H"),
        (Source(_HF + "post_attention_layernorm.weight", ("H",)),),
        aliases=(_LAYERS + "pre_mlp_layernorm.weight",),
    ),
    Entry(
        _LAYERS + "mlp.linear_fc1.weight",
        ("L", "2F", "H"),
        (Source(_HF + "mlp.gate_proj.weight", ("F", "H")), Source(_HF + "mlp.up_proj.weight", ("F", "H"))),
        Op.JOIN,
        tensor_parallel_axis=0,
    ),
    Entry(
        _LAYERS + "mlp.linear_fc2.weight",
        ("L", "H", "F"),
        (Source(_HF + "mlp.down_proj.weight", ("H", "F")),),
        tensor_parallel_axis=1,
    ),
)

EXTRA_STATES = (
    _LAYERS + "self_attention.linear_qkv",
    _LAYERS + "self_attention.linear_proj",
    _LAYERS + "mlp.linear_fc1",
    _LAYERS + "mlp.linear_fc2",
    "decoder.final_layernorm",
)
QUERY_KEY_NORM_EXTRA_STATES = (_LAYERS + "self_attention.q_layernorm", _LAYERS + "self_attention.k_layernorm")

# Old transformers saved this buffer; it follows from rope_theta and head_dim.
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def dense_dimensions(config: Config, *, kv_heads: int | None = None, head: int | None = None) -> dict[str, int]:
    """Sizes of the axes. `kv_heads` and `head` are the defaults of the HF class where config.json omits the field.

    Raises:
        InputError: a field is missing or no positive integer, or KV heads do not divide the query heads.
    """
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    groups = integer(config, "num_key_value_heads", kv_heads or heads)
    if heads % groups:
        raise InputError(f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {groups}")
    if config.get("head_dim") is None and head is None and hidden % heads:
        raise InputError(
            f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}; set head_dim"
        )
    width = integer(config, "head_dim", head or hidden // heads)
    ffn = integer(config, "intermediate_size")
    return {
        "L": repeated("num_hidden_layers", integer(config, "num_hidden_layers")),
        "H": hidden,
        "F": ffn,
        "2F": 2 * ffn,
        "V": integer(config, "vocab_size"),
        "D": width,
        "Q": heads * width,
        "K": groups * width,
        "QKV": (heads + 2 * groups) * width,
    }


def dense_arguments(config: Config, dimensions: dict[str, int], window: WindowRule = NO_WINDOW) -> dict[str, Value]:
    """Megatron arguments (`dest` names) common to pre-norm decoders with RMSNorm, SwiGLU and rotary embeddings.

    Each of them differs from a Megatron default or would silently follow one, so all are stated.
    """
    return {
        "num_layers": dimensions["L"],
        "hidden_size": dimensions["H"],
        "ffn_hidden_size": dimensions["F"],
        "num_attention_heads": dimensions["Q"] // dimensions["D"],
        "group_query_attention": True,
        "num_query_groups": dimensions["K"] // dimensions["D"],
        "kv_channels": dimensions["D"],
        "vocab_size": dimensions["V"],
        "max_position_embeddings": integer(config, "max_position_embeddings"),
        "normalization": "RMSNorm",
        "layernorm_epsilon": number(config, "rms_norm_eps", 1e-6),
        "swiglu": True,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        "untie_embeddings_and_output_weights": not tied(config),
        "init_method_std": number(config, "initializer_range", 0.02),
        **rope_arguments(config),
        **window_arguments(window.window(config)),
    }


def dense_unsupported(config: Config, window: WindowRule = NO_WINDOW) -> list[str]:
    """Refusals common to the dense decoders."""
    problems = rope_unsupported(config)
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        problems.append(f"hidden_act is {activation!r}: only silu (SwiGLU) is mapped")
    if config.get("quantization_config") and fp8_blocks(config) is None:
        problems.append("quantization_config is set: convert an unquantised model")
    return problems + window.unsupported(config)


def fp8_blocks(config: Config) -> tuple[int, int] | None:
    """(rows, columns) that share a scale where config.json declares fp8 weights in blocks; such are dequantised."""
    declared = config.get("quantization_config")
    if not isinstance(declared, dict) or declared.get("quant_method") != "fp8":
        return None
    block = declared.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        return None
    return block[0], block[1]


def biases_unsupported(config: Config, *fields: str) -> list[str]:
    """Refuses each of the boolean `fields` that is set: Megatron switches linear biases on for all layers or none."""
    return [
        f"{field} is true: Megatron has no such bias without one on every linear layer"
        for field in fields
        if config.get(field)
    ]
