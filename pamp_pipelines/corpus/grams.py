"""Runs of 13 tokens that texts share: how overlap of benchmarks with training text is counted, wherever it is.

Thirteen is the length of GPT-3's overlap analysis (Brown et al. 2020, appendix C), there in words. A token here is any
number: an id of a tokenizer, or the hash of a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GRAM = 13
CHUNK = 1 << 22  # tokens hashed at a time
_BASE = 0x9E3779B97F4A7C15  # odd, so that no token is lost modulo 2^64


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


class Grams:
    """The runs of several texts, to be looked for in much longer ones: some 50 s a billion tokens on one core.

    Args:
        texts: tokens of each.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        import numpy as np

        self._of_text = [gram_hashes(np.asarray(text, dtype=np.uint64)) for text in texts]
        self._wanted = np.unique(np.concatenate(self._of_text)) if texts else np.empty(0, np.uint64)

    @property
    def sha256(self) -> str:
        """Hash over all runs in their order: equal for equal texts."""
        digest = hashlib.sha256()
        for grams in self._of_text:
            digest.update(len(grams).to_bytes(8, "little") + grams.tobytes())
        return digest.hexdigest()

    def in_stream(self, tokens: npt.NDArray[np.integer]) -> list[bool]:
        """Which texts share a run with a stream of tokens, shape [tokens], e.g. mapped from a file."""
        import numpy as np

        found = np.zeros(len(self._wanted), dtype=bool)
        for start in range(0, len(tokens) if len(self._wanted) else 0, CHUNK):
            hashes = gram_hashes(tokens[start : start + CHUNK + GRAM - 1].astype(np.uint64))
            places = np.searchsorted(self._wanted, hashes)
            places[places == len(self._wanted)] = 0
            found[places[self._wanted[places] == hashes]] = True
        seen = self._wanted[found]
        return [bool(np.isin(grams, seen).any()) for grams in self._of_text]
