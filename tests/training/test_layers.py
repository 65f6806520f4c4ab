"""Attention of processes without Transformer Engine against the formula, with a sliding window and without.

Axes: as in `training/layers.py`; every head has a key and value head of its own
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

TOKENS, SAMPLES, HEADS, WIDTH = 23, 2, 3, 8


def attention(window: tuple[int, int] | None, layer: int = 1, skip: Any = None) -> Any:
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    from pamp_pipelines.training.layers import TorchAttention

    config = TransformerConfig(
        num_layers=2,
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        window_size=window,
        window_attn_skip_freq=skip,
        attention_dropout=0.0,
    )
    return TorchAttention(config, layer, AttnMaskType.causal, "self")


def inputs(tokens: int = TOKENS) -> list[torch.Tensor]:
    """Query, key and value, (S, B, N, D)."""
    random = torch.Generator().manual_seed(1)
    return [torch.randn(tokens, SAMPLES, HEADS, WIDTH, generator=random, requires_grad=True) for _ in range(3)]


def by_formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int) -> torch.Tensor:
    """Each token's attention to itself and to `window` - 1 tokens before it, one after the other."""
    context = []
    for token in range(len(query)):
        seen = slice(max(0, token - window + 1), token + 1)
        scores = torch.einsum("bnd,sbnd->sbn", query[token], key[seen]) / WIDTH**0.5
        context.append(torch.einsum("sbn,sbnd->bnd", scores.softmax(0), value[seen]))
    return torch.stack(context).flatten(2)


@pytest.mark.parametrize("window", [1, 2, 7, TOKENS - 1])
def test_context_and_gradients_within_a_window(window: int) -> None:
    tensors = inputs()
    context = attention((window - 1, 0))(*tensors, None)
    expected = by_formula(*tensors, window)
    torch.testing.assert_close(context, expected, atol=1e-6, rtol=1e-5)
    weights = torch.linspace(-1, 1, context.numel()).view_as(context)
    ours = torch.autograd.grad((context * weights).sum(), tensors)
    theirs = torch.autograd.grad((expected * weights).sum(), tensors)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_window_longer_than_the_sequence_is_none() -> None:
    """The same bits."""
    tensors = inputs()
    without = attention(None)(*tensors, None)
    for window in (TOKENS, TOKENS + 1, 4096):
        assert torch.equal(attention((window - 1, 0))(*tensors, None), without)
    assert not torch.allclose(attention((TOKENS - 2, 0))(*tensors, None), without)


def test_a_layer_without_a_window_sees_all() -> None:
    tensors = inputs()
    with_pattern = [attention((4, 0), layer, [1, 0])(*tensors, None) for layer in (1, 2)]
    assert torch.equal(with_pattern[0], attention((4, 0))(*tensors, None))
    assert torch.equal(with_pattern[1], attention(None)(*tensors, None))


def test_the_window_lies_within_each_document() -> None:
    """Documents of a micro batch are one packed sequence; each is as if it were alone."""
    lengths = (9, 3, 11)
    packed = [tensor[:, 0] for tensor in inputs(sum(lengths))]
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    windowed = attention((4, 0))
    context = windowed(*packed, None, packed_seq_params=SimpleNamespace(cu_seqlens_q=bounds))
    documents = zip(*(tensor.split(lengths) for tensor in packed), strict=True)
    alone = [by_formula(*(part[:, None] for part in document), 5)[:, 0] for document in documents]
    torch.testing.assert_close(context, torch.cat(alone), atol=1e-6, rtol=1e-5)
