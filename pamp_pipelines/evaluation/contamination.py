"""Whether a model has seen what it is scored on: by whole documents, and by runs of 13 tokens.

Thirteen is the length of GPT-3's overlap analysis (Brown et al. 2020, appendix C), there in words. Here they are tokens
of the model's own tokenizer, since the shards are what training read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GRAM = 13
CHUNK = 1 << 22  # tokens hashed at a time
MOST_TOKENS = 2_000_000_000
"""Training tokens beyond which runs are not searched for: that takes some 50 s a billion on one core."""
_BASE = 0x9E3779B97F4A7C15  # odd, so that no token is lost modulo 2^64


def documents_in_training(heldout: Sequence[Path], train: Sequence[Path]) -> tuple[int, int]:
    """How many held-out documents are also training documents, token for token; and of how many.

    Args:
        heldout, train: prefixes of shards with one sequence a document. Only training documents that are as long as
            some held-out one are read.
    """
    import numpy as np

    wanted: dict[int, set[bytes]] = {}
    documents = 0
    for length, digest in _digests(heldout, None):
        wanted.setdefault(length, set()).add(digest)
        documents += 1
    lengths = np.fromiter(wanted, np.int64, len(wanted))
    seen = {(n, digest) for n, digest in _digests(train, lengths) if digest in wanted[n]}
    return sum(1 for found in _digests(heldout, None) if found in seen), documents


def _digests(prefixes: Sequence[Path], lengths: npt.NDArray[np.int64] | None) -> Iterable[tuple[int, bytes]]:
    """Length and SHA-256 of each document, as int64 so that the shards' types do not matter."""
    import numpy as np

    from pamp_pipelines.tokenization.indexed import IndexedReader

    for prefix in prefixes:
        reader = IndexedReader(prefix)
        ends = reader.lengths.cumsum(dtype=np.int64)
        chosen = range(len(reader)) if lengths is None else np.flatnonzero(np.isin(reader.lengths, lengths)).tolist()
        for number in chosen:
            length = int(reader.lengths[number])
            tokens = reader.tokens[ends[number] - length : ends[number]].astype(np.int64)
            yield length, hashlib.sha256(tokens.tobytes()).digest()


def seen_in_training(texts: Sequence[Sequence[int]], train: Sequence[Path]) -> list[bool] | None:
    """Which texts share a run of 13 tokens with the training shards; None where those are too large to search.

    Args:
        texts: token ids of each.
        train: prefixes of the shards.
    """
    import numpy as np

    from pamp_pipelines.tokenization.indexed import IndexedReader

    readers = [IndexedReader(prefix) for prefix in train]
    if sum(len(reader.tokens) for reader in readers) > MOST_TOKENS:
        return None
    grams = [gram_hashes(np.asarray(text, dtype=np.uint64)) for text in texts]
    wanted = np.unique(np.concatenate(grams)) if grams else np.empty(0, np.uint64)
    found = np.zeros(len(wanted), dtype=bool)
    for reader in readers:
        for start in range(0, len(reader.tokens), CHUNK):
            chunk = reader.tokens[start : start + CHUNK + GRAM - 1].astype(np.uint64)
            hashes = gram_hashes(chunk)
            places = np.searchsorted(wanted, hashes)
            places[places == len(wanted)] = 0
            if len(wanted):
                found[places[wanted[places] == hashes]] = True
    seen = wanted[found]
    return [bool(np.isin(of_text, seen).any()) for of_text in grams]


def gram_hashes(tokens: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A 64-bit polynomial hash of each run of 13 tokens, shape [tokens - 12]; empty for fewer."""
    import numpy as np

    count = len(tokens) - GRAM + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    hashes = np.zeros(count, np.uint64)
    for place in range(GRAM):
        hashes = hashes * np.uint64(_BASE) + tokens[place : place + count] + np.uint64(1)  # wraps modulo 2^64
    return hashes
