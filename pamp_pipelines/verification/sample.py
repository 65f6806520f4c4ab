"""The token ids that both models are asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pamp_pipelines.conversion.architectures import window_of
from pamp_pipelines.conversion.architectures.rope import rope_of
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization.engines import open_tokenizer

POSITIONS = 64
"""Least number of positions compared."""

_FLOPS = 4e11
"""About ten seconds of one core: what positions beyond the original context may cost."""
_LOGIT_BYTES = 256 * 2**20

_TEXT = """\
The quick brown fox jumps over the lazy dog. In 1687 Newton wrote that the force between two bodies falls with the
square of their distance: F = G * m1 * m2 / r**2. What follows when r is doubled? A quarter remains.

def mean(values: list[float]) -> float:
    return sum(values) / len(values)

Le chat dort sur la chaise, während draußen der Regen fällt. 语言模型预测下一个词。 Быстрая лиса. 1234567890 + 0.5 = ?
"""


def sample_positions(config: dict[str, Any]) -> int:
    """How many positions to compare: 64, or enough to pass a sliding window and a scaled rotary embedding's context.

    Scaling changes all positions, but what it is for shows beyond the context it was trained on, and a window beyond
    its tokens. Where a forward pass that long would cost more than some seconds, 64 positions have to do, with equal
    inverse frequencies for the rest.

    Args:
        config: config.json of the model that is run, i.e. with as many layers as are compared.
    """
    limit = int(config.get("max_position_embeddings") or POSITIONS)
    scaling = rope_of(config).scaling
    original = scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    window = window_of(config)
    ends = [end for end in (original, window and window.tokens) if isinstance(end, int) and end + POSITIONS <= limit]
    if not ends:
        return min(POSITIONS, limit)
    wanted = max(ends) + POSITIONS
    layout = layout_of(config)
    sizes = layout.dimensions
    queries = sizes["Q"] if "Q" in sizes else sizes["U"]
    flops = 2 * wanted * (layout.parameters() + sizes["L"] * queries * wanted)  # as if each token saw each expert
    cheap = flops <= _FLOPS and wanted * sizes["V"] * 4 <= _LOGIT_BYTES
    return wanted if cheap else min(POSITIONS, limit)


def sample_tokens(directory: Path, vocabulary: int, positions: int) -> tuple[npt.NDArray[np.int64], str]:
    """Token ids of shape (positions,), and where they come from: `text`, or `random` without a tokenizer that fits.

    A text that is too short is followed by random ids from a fixed seed.

    Args:
        directory: Hugging Face directory; its tokenizer is used.
        vocabulary: rows of the embedding; every id lies below.
        positions: how many.
    """
    ids = np.random.default_rng(20).integers(0, vocabulary, positions)
    text = _tokenize(directory)[:positions]
    if not text or max(text) >= vocabulary:
        return ids, "random"
    ids[: len(text)] = text
    return ids, "text"


def _tokenize(directory: Path) -> list[int]:
    if (file := directory / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        return list(Tokenizer.from_file(str(file)).encode(_TEXT).ids)
    try:
        tokenizer = open_tokenizer(directory)
    except InputError:
        return []
    ids: list[int] = tokenizer.encode([_TEXT])[0].tolist()
    return ids
