"""Is the config of a from_scratch model whole, free of misspelt fields, and possible?

Nobody else reads these fields before the model is recorded, and Hugging Face's classes replace what is absent by their
defaults without a word: `rms_norm_ep` would train with another epsilon than declared.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pamp_pipelines.declarations.hf_fields import CLASSES, ROPE_FIELDS, known_fields
from pamp_pipelines.declarations.report import Subject
from pamp_pipelines.declarations.suggest import did_you_mean

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
"""Sizes that no class may choose by itself."""

_SIZES = (
    "num_key_value_heads",
    "head_dim",
    "moe_intermediate_size",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "shared_expert_intermediate_size",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
_NUMBERS = ("rms_norm_eps", "initializer_range", "rope_theta", "routed_scaling_factor")
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias", "use_sliding_window", "norm_topk_prob")
_WIDTHS = {"qwen3": 128}
"""Families whose heads have a width of their own where `head_dim` is absent."""
_NEAR = 0.8
"""Likeness (difflib's ratio) from which an unknown field counts as a misspelt one."""

_WHERE = "from_scratch.config"


def check_scratch_config(subject: Subject, config: Mapping[str, Any]) -> None:
    """Reports missing, misspelt, unknown and impossible fields, each at its own line."""
    family = _family(subject, config)
    if family is None:
        return
    _check_names(subject, config, known_fields(family), ())
    for field in ("rope_parameters", "rope_scaling"):
        nested = config.get(field)
        if isinstance(nested, dict):
            _check_names(subject, nested, ROPE_FIELDS, (field,))
            _check_number(subject, nested, "rope_theta", (field,))
        elif nested is not None:
            subject.error(_WHERE, f"{nested!r} is not a mapping such as {{rope_theta: 10000.0}}", field)
    for field in REQUIRED:
        if config.get(field) is None:
            subject.error(_WHERE, f"{field} is missing: the architecture cannot be derived without it")
    for field in (*REQUIRED, *_SIZES):
        if config.get(field) is not None and _size(config, field) is None:
            subject.error(_WHERE, f"{config[field]!r} is not a positive whole number", field)
    for field in _NUMBERS:
        _check_number(subject, config, field, ())
    for field in _SWITCHES:
        if not isinstance(config.get(field, False), bool):
            subject.error(_WHERE, f"{config[field]!r} is neither true nor false", field)
    if not family.startswith("deepseek"):  # latent attention has no KV heads and its own widths
        _check_heads(subject, config, _WIDTHS.get(family))


def _family(subject: Subject, config: Mapping[str, Any]) -> str | None:
    """The model_type; what names none is an error here, what names an unsupported one is the conversion's to refuse."""
    classes, declared = config.get("architectures"), config.get("model_type")
    if isinstance(classes, list) and classes:
        family = CLASSES.get(str(classes[0]))
        if family is None:
            subject.error(_WHERE, _unsupported(str(classes[0]), CLASSES))
        elif declared not in (None, family):
            subject.error(_WHERE, f"{declared!r} is not the model_type of {classes[0]}: write {family}", "model_type")
        return family
    if classes is not None:
        subject.error(_WHERE, f"{classes!r} is not a list such as [LlamaForCausalLM]", "architectures")
    elif declared is None:
        hint = did_you_mean("architectures", config)
        subject.error(_WHERE, f"architectures is missing: one of {', '.join(CLASSES)}.{hint}")
    elif declared not in CLASSES.values():
        subject.error(_WHERE, _unsupported(str(declared), CLASSES.values()), "model_type")
    else:
        return str(declared)
    return None


def _unsupported(given: str, known: Iterable[str]) -> str:
    return f"{given!r} is not supported: take one of {', '.join(known)}.{did_you_mean(given, known)}"


def _check_names(subject: Subject, given: Mapping[str, Any], known: frozenset[str], below: tuple[str, ...]) -> None:
    for field in given:
        if field in known:
            continue
        near = difflib.get_close_matches(field, sorted(known), n=1, cutoff=_NEAR)
        if near:
            subject.error(_WHERE, f"unknown field. Did you mean {near[0]!r}?", *below, field)
        else:
            message = (
                f"no field that this architecture is known to have: it changes nothing.{did_you_mean(field, known)}"
            )
            subject.warn(_WHERE, message, *below, field)


def _check_number(subject: Subject, given: Mapping[str, Any], field: str, below: tuple[str, ...]) -> None:
    value = given.get(field)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        subject.error(_WHERE, f"{value!r} is not a positive number", *below, field)


def _check_heads(subject: Subject, config: Mapping[str, Any], implied: int | None) -> None:
    """implied: width of a head where `head_dim` is absent; None: hidden_size / num_attention_heads."""
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    groups, width = _size(config, "num_key_value_heads"), _size(config, "head_dim") or implied
    if heads and groups and heads % groups:
        message = f"{groups} does not divide num_attention_heads {heads}"
        subject.error(_WHERE, message, "num_key_value_heads")
    if width is None and heads and hidden and hidden % heads:
        message = f"{heads} does not divide hidden_size {hidden}: change one of them, or set head_dim"
        subject.error(_WHERE, message, "num_attention_heads")
        return
    width = width or (hidden // heads if hidden and heads else None)
    if width and width % 2:
        field = "head_dim" if "head_dim" in config else "num_attention_heads"
        subject.error(_WHERE, f"heads are {width} wide: rotary embeddings turn pairs, so take an even width", field)


def _size(config: Mapping[str, Any], field: str) -> int | None:
    value = config.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
