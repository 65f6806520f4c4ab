"""Sizes of a model that decide on its memory and its work, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pamp_pipelines.conversion.architectures import Window, window_of
from pamp_pipelines.conversion.layout import layout_of


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, in elements.

    Args:
        parameters: of the whole model, each counted once.
        embedding: of the input embedding.
        tied: whether the output layer is the embedding.
        layers, hidden, vocabulary: as in config.json.
        heads: query heads.
        queries, keys: width of all query heads, and of all key heads, which is also that of all value heads.
        ffn: width of the feed-forward network that a token passes: of all its experts together, where it has several.
        experts: parameters of all routed experts of all layers; 0 in a dense model.
        active_experts: those of them that one token uses.
        window: the sliding window, and which layers have it; None where none has.
    """

    parameters: int
    embedding: int
    tied: bool
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    queries: int
    keys: int
    ffn: int
    experts: int = 0
    active_experts: int = 0
    window: Window | None = None

    @property
    def multiplied(self) -> int:
        """Parameters that multiply each token: all but an input embedding of its own, which is looked up."""
        looked_up = 0 if self.tied else self.embedding
        return self.parameters - looked_up - self.experts + self.active_experts

    @property
    def in_layers(self) -> int:
        """Parameters outside the embedding and the output layer."""
        return self.parameters - self.embedding * (1 if self.tied else 2)

    def seen(self, sequence_length: int) -> float:
        """Tokens that a token of a sequence sees, the mean over its tokens, summed over the layers."""
        every = sequence_length / 2
        if self.window is None or self.window.tokens >= sequence_length:
            return self.layers * every
        windowed = sum(self.window.layers)
        # before the window is full, half of it
        within = self.window.tokens * (1 - self.window.tokens / (2 * sequence_length))
        return (self.layers - windowed) * every + windowed * within


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Sizes of the model of a config.json.

    Raises:
        InputError: unknown architecture, or an impossible config.
    """
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
    head = int(config.get("head_dim") or hidden // heads)
    groups = int(config.get("num_key_value_heads") or heads)
    ffn, experts, active = _feed_forward(config, hidden, layers)
    return Shape(
        parameters=layout_of(config).parameters(),
        embedding=vocabulary * hidden,
        tied=bool(config.get("tie_word_embeddings", False)),
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        queries=heads * head,
        keys=groups * head,
        ffn=ffn,
        experts=experts,
        active_experts=active,
        window=window_of(config),
    )


def _feed_forward(config: Mapping[str, Any], hidden: int, layers: int) -> tuple[int, int, int]:
    """Width that a token passes, parameters of the routed experts, and those of them that a token uses."""
    count = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if not count:
        return int(config["intermediate_size"]), 0, 0
    width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    chosen = int(config.get("num_experts_per_tok") or 1)
    shared = int(config.get("shared_expert_intermediate_size") or width * int(config.get("n_shared_experts") or 0))
    sparse = layers - int(config.get("first_k_dense_replace") or 0)
    one = 3 * hidden * width
    return chosen * width + shared, sparse * int(count) * one, sparse * chosen * one


def flops_per_token(shape: Shape, sequence_length: int) -> float:
    """Floating-point operations that training needs for one token, forward and backward; recomputation not counted.

    Two for each multiplied parameter forward and twice that backward, and the two products of attention, of which
    causality masks half (PaLM's model FLOPs, arXiv 2204.02311 appendix B, where attention counts in full) and a sliding
    window what lies before it.
    """
    return 6.0 * shape.multiplied + 12.0 * shape.queries * shape.seen(sequence_length)
