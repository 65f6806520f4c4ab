"""Sliding windows: which layers see how far back, as transformers reads a config.json and as Megatron is told.

transformers' `sliding_window` W counts the token itself, `kv > q - W` in `masking_utils.py`. Megatron's and Transformer
Engine's `window_size` counts the tokens on its left and on its right: (W - 1, 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pamp_pipelines.conversion.architectures.table import Config, Value, Window, count, integer

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class WindowRule:
    """How the class of a family reads its window.

    text: in words.
    declared: the window that a config.json switches on, as it stands there; None without one.
    pattern: whether a layer has it, from the layer's index and `max_window_layers`, where no `layer_types` say so; None
        where all layers have it and the class reads no `layer_types`.
    """

    text: str = ""
    declared: Callable[[Config], Any] = lambda _: None
    pattern: Callable[[int, int], bool] | None = None

    def window(self, config: Config) -> Window | None:
        """The window, unless no layer has it or no sequence is longer."""
        tokens = self.declared(config)
        if not _possible(tokens) or tokens >= integer(config, "max_position_embeddings"):
            return None
        layers = self._layers(config)
        return Window(tokens, layers) if any(layers) else None

    def _layers(self, config: Config) -> tuple[bool, ...]:
        layers = integer(config, "num_hidden_layers")
        if self.pattern is None:
            return (True,) * layers
        if types := config.get("layer_types"):
            return tuple(kind == _SLIDING for kind in types)
        bound = count(config, "max_window_layers", 28)  # the default of every class that has the field
        return tuple(self.pattern(layer, bound) for layer in range(layers))

    def unsupported(self, config: Config) -> list[str]:
        """What is no window, or one that transformers itself would read otherwise than it is written."""
        tokens, types = self.declared(config), config.get("layer_types") or ()
        if tokens is not None and not _possible(tokens):
            return [f"sliding_window is {tokens!r}: expected how many tokens a token sees, or null"]
        for kind in types:
            if kind not in (_FULL, _SLIDING):
                return [f"layer_types holds {kind}: Megatron has full and sliding attention"]
        if self.pattern is None:
            meant = _FULL if tokens is None else _SLIDING
            every = "with full attention" if tokens is None else "with its sliding_window"
            return [
                f"layer_types holds {kind}: transformers' class reads no layer_types and runs every layer {every}"
                for kind in sorted({*types} - {meant})
            ]
        if types and len(types) != (layers := integer(config, "num_hidden_layers")):
            return [f"layer_types names {len(types)} layers: num_hidden_layers is {layers}"]
        if _SLIDING in types and tokens is None:
            return [
                "layer_types holds sliding_attention: without use_sliding_window and sliding_window there is no window"
            ]
        return []


NO_WINDOW = WindowRule()


def qwen_window(config: Config) -> Any:
    """The window in use: Qwen's config names one even where `use_sliding_window` is off."""
    return config.get("sliding_window", 4096) if config.get("use_sliding_window") else None


UPPER_LAYERS = WindowRule(
    "with `use_sliding_window`, in the layers that `layer_types` names, or from layer `max_window_layers` on",
    qwen_window,
    lambda layer, bound: layer >= bound,
)
"""Qwen2's and Qwen3's."""


def window_arguments(window: Window | None) -> dict[str, Value]:
    """Megatron arguments of a window; none without."""
    if window is None:
        return {}
    arguments: dict[str, Value] = {"window_size": f"{window.tokens - 1},0"}
    if not all(window.layers):
        arguments["window_attn_skip_freq"] = "[" + ",".join(str(int(has)) for has in window.layers) + "]"
    return arguments


def _possible(tokens: Any) -> bool:
    return isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0
