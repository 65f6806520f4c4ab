"""Perplexity of a unigram model: what a model reaches that knows how often each token occurs and nothing else.

A trained model that does not get below it has learnt no more than frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pamp_pipelines.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CHUNK = 1 << 24  # tokens counted at a time: memory stays small for shards of any size


@dataclass(frozen=True)
class Unigram:
    """Outcome: ``loss`` in nats a token, ``perplexity`` = exp(loss), tokens counted and scored."""

    loss: float
    perplexity: float
    train_tokens: int
    heldout_tokens: int


def unigram(train: Sequence[Path], heldout: Sequence[Path], vocabulary: int, without: int | None = None) -> Unigram:
    """Score held-out tokens by add-one smoothed counts of the training tokens.

    Args:
        train: training shards, the paths of their ``.bin`` and ``.idx`` without suffix; counted together.
        heldout: held-out shards, likewise.
        vocabulary: size of the model's vocabulary; every token gets one count more than it has.
        without: token left out on both sides, e.g. the end of document where a model is not scored on it.

    Raises:
        InputError: no tokens, or one outside the vocabulary.
    """
    import numpy as np

    counts = _counts(train, vocabulary)
    scored = _counts(heldout, vocabulary)
    if without is not None:
        counts[without] = scored[without] = 0
    vocabulary -= without is not None
    if not scored.sum():
        raise InputError(f"{', '.join(f'{prefix}.bin' for prefix in heldout)}: no tokens to score.")
    log_probabilities = np.log(counts + 1.0) - math.log(float(counts.sum()) + vocabulary)
    loss = -float((scored * log_probabilities).sum() / scored.sum())
    return Unigram(loss, math.exp(loss), int(counts.sum()), int(scored.sum()))


def _counts(prefixes: Sequence[Path], vocabulary: int) -> npt.NDArray[np.int64]:
    """Occurrences of each token in shards, shape [vocabulary]."""
    import numpy as np

    from pamp_pipelines.tokenization.indexed import IndexedReader, bin_path

    counts = np.zeros(vocabulary, dtype=np.int64)
    for prefix in prefixes:
        tokens = IndexedReader(prefix).tokens
        for start in range(0, len(tokens), CHUNK):
            chunk = np.bincount(tokens[start : start + CHUNK], minlength=vocabulary)
            if len(chunk) > vocabulary:
                outside = len(chunk) - 1
                raise InputError(f"{bin_path(prefix)}: token {outside} is outside the vocabulary of {vocabulary}.")
            counts += chunk
    return counts
