"""Which models can be converted: one module per family, each with its tensor table and its Megatron arguments.

`architecture_of(config)` finds the family of a Hugging Face `config.json`; `megatron_arguments` and `unsupported` ask
a config directly.
"""

from __future__ import annotations

from pamp_pipelines.conversion.architectures.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from pamp_pipelines.conversion.architectures.llama import LLAMA, MISTRAL
from pamp_pipelines.conversion.architectures.mixtral import MIXTRAL
from pamp_pipelines.conversion.architectures.qwen2 import QWEN2
from pamp_pipelines.conversion.architectures.qwen3 import QWEN3
from pamp_pipelines.conversion.architectures.qwen_moe import QWEN2_MOE, QWEN3_MOE
from pamp_pipelines.conversion.architectures.table import (
    Architecture,
    Config,
    Entry,
    Layers,
    Op,
    Source,
    Value,
    When,
    Window,
    tied,
)
from pamp_pipelines.errors import InputError

ARCHITECTURES: tuple[Architecture, ...] = (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
)

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Config",
    "Entry",
    "Layers",
    "Op",
    "Source",
    "Value",
    "When",
    "Window",
    "architecture_of",
    "megatron_arguments",
    "tied",
    "unsupported",
    "window_of",
]


def architecture_of(config: Config) -> Architecture:
    """The family of a model: by `architectures[0]`, or by `model_type` where that is absent.

    Raises:
        InputError: no family has that name, and the message lists those that exist; or it is no name.
    """
    classes = config.get("architectures") or []
    if not isinstance(classes, list) or not isinstance(next(iter(classes), ""), str):
        raise InputError(f"config.json: architectures is {classes!r}; expected a list such as ['LlamaForCausalLM']")
    for architecture in ARCHITECTURES:
        known = classes[0] in architecture.classes if classes else config.get("model_type") in architecture.model_types
        if known:
            return architecture
    named = f"architectures {classes[0]!r}" if classes else f"model_type {config.get('model_type')!r}"
    supported = ", ".join(f"{a.name} ({', '.join(a.classes)})" for a in ARCHITECTURES)
    raise InputError(f"config.json: {named} is not supported; supported are {supported}")


def megatron_arguments(config: Config) -> dict[str, Value]:
    """Megatron argument `dest` names and values that make Megatron build the model of this config.json.

    Raises:
        InputError: unknown family, or a missing or impossible field.
    """
    return architecture_of(config).megatron_arguments(config)


def unsupported(config: Config) -> list[str]:
    """What Megatron's training loop cannot represent of this model, one sentence each; empty where it can train it."""
    return architecture_of(config).unsupported(config)


def window_of(config: Config) -> Window | None:
    """The sliding window of this config.json; None where every token sees all tokens before it."""
    return architecture_of(config).window(config)
