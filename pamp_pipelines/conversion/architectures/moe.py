"""Building blocks of layers with routed experts: keys, arguments and refusals shared by the families.

Key names and layouts: megatron-core 0.19.2 under Transformer Engine, for grouped and for sequential experts alike. The
local layer specification names the norm before the experts as in a dense layer: the alias. Axis names: table.py.
"""

from __future__ import annotations

from dataclasses import replace

from pamp_pipelines.conversion.architectures.table import (
    Config,
    Entry,
    Layers,
    Op,
    Source,
    Value,
    count,
    integer,
    repeated,
)

_LAYERS = "decoder.layers."
_HF = "model.layers.{layer}."

NORM_BEFORE_EXPERTS = Entry(
    _LAYERS + "pre_mlp_layernorm.weight",
    ("L", "H"),
    (Source(_HF + "post_attention_layernorm.weight", ("H",)),),
    layers=Layers.SPARSE,
    aliases=(_LAYERS + "mlp.linear_fc1.layer_norm_weight",),
)

EXPERTS_EXTRA_STATES = (
    _LAYERS + "pre_mlp_layernorm",
    _LAYERS + "mlp.experts.experts.linear_fc1",
    _LAYERS + "mlp.experts.experts.linear_fc2",
)
SHARED_EXTRA_STATES = (_LAYERS + "mlp.shared_experts.linear_fc1", _LAYERS + "mlp.shared_experts.linear_fc2")


def experts(router: str, gate: str, up: str, down: str) -> tuple[Entry, ...]:
    """Router and routed experts; arguments: HF names below `model.layers.{layer}.`, `{expert}` for the expert."""
    return (
        NORM_BEFORE_EXPERTS,
        Entry(
            _LAYERS + "mlp.router.weight",
            ("L", "E", "H"),
            (Source(_HF + router, ("E", "H")),),
            layers=Layers.SPARSE,
        ),
        Entry(
            _LAYERS + "mlp.experts.experts.linear_fc1.weight",
            ("L", "E", "2M", "H"),
            (Source(_HF + gate, ("M", "H")), Source(_HF + up, ("M", "H"))),
            Op.JOIN,
            tensor_parallel_axis=0,
            layers=Layers.SPARSE,
        ),
        Entry(
            _LAYERS + "mlp.experts.experts.linear_fc2.weight",
            ("L", "E", "H", "M"),
            (Source(_HF + down, ("H", "M")),),
            tensor_parallel_axis=1,
            layers=Layers.SPARSE,
        ),
    )


def projected_experts() -> tuple[Entry, ...]:
    """Router and routed experts under the names that most families give them."""
    return experts(
        "mlp.gate.weight", *(f"mlp.experts.{{expert}}.{part}_proj.weight" for part in ("gate", "up", "down"))
    )


def shared_experts(module: str) -> tuple[Entry, ...]:
    """The experts that see every token; `module`: their HF name below `model.layers.{layer}.`."""
    names = [f"{_HF}{module}.{part}_proj.weight" for part in ("gate", "up", "down")]
    return (
        Entry(
            _LAYERS + "mlp.shared_experts.linear_fc1.weight",
            ("L", "2S", "H"),
            (Source(names[0], ("S", "H")), Source(names[1], ("S", "H"))),
            Op.JOIN,
            tensor_parallel_axis=0,
            layers=Layers.SPARSE,
        ),
        Entry(
            _LAYERS + "mlp.shared_experts.linear_fc2.weight",
            ("L", "H", "S"),
            (Source(names[2], ("H", "S")),),
            tensor_parallel_axis=1,
            layers=Layers.SPARSE,
        ),
    )


def in_dense_layers(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The same entries, in layers without experts only."""
    return tuple(replace(entry, layers=Layers.DENSE) for entry in entries)


def expert_dimensions(number: int, width: int) -> dict[str, int]:
    """Sizes of the axes of routed experts."""
    return {"E": repeated("number of experts", number), "M": width, "2M": 2 * width}


def expert_arguments(config: Config, dimensions: dict[str, int], sparse: tuple[bool, ...] | None) -> dict[str, Value]:
    """Megatron arguments common to models with routed experts; none of them drops a token.

    The router's softmax is taken in float32, as transformers does.
    """
    return {
        "num_experts": dimensions["E"],
        "moe_router_topk": integer(config, "num_experts_per_tok", 2),
        "moe_ffn_hidden_size": dimensions["M"],
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,
        "moe_router_enable_expert_bias": False,
        "moe_shared_expert_gate": False,
        "moe_router_dtype": "fp32",
        "moe_token_dispatcher_type": "alltoall",
        "moe_layer_freq": "[" + ",".join(str(int(s)) for s in sparse) + "]" if sparse else "1",
        **balancing("aux_loss", config.get("router_aux_loss_coef")),
    }


def balancing(kind: str, coefficient: float | None) -> dict[str, Value]:
    """Arguments of the loss that spreads tokens over experts; a coefficient of 0 or none switches it off."""
    on = isinstance(coefficient, int | float) and coefficient > 0
    return {
        "moe_router_load_balancing_type": kind if on else "none",
        "moe_aux_loss_coeff": float(coefficient or 0.0) if on else 0.0,
    }


def top_one_unsupported(config: Config, pre_softmax: bool) -> list[str]:
    """Megatron refuses to take the softmax over one chosen expert, whose weight would be 1 whatever the router says."""
    if count(config, "num_experts_per_tok", 2) == 1 and not pre_softmax:
        return ["num_experts_per_tok is 1 with normalised weights: Megatron's router does not train with it"]
    return []
