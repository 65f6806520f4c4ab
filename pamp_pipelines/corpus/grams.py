"""Runs of 13 tokens that texts share: how overlap of benchmarks with training text is counted, wherever it is.

Thirteen is the length of GPT-3's overlap analysis (Brown et al. 2020, appendix C), there in words. A token here is any
number: an id of a tokenizer, or the hash of a word.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GRAM = 13
CHUNK = 1 << 18  # tokens hashed at a time: their hashes stay in the processor's cache
_BASE = 0x9E3779B97F4A7C15  # odd, so that no token is lost modulo 2^64
_INVERSE = pow(_BASE, -1, 1 << 64)


def gram_hashes(tokens: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A 64-bit polynomial hash of each run of 13 tokens, shape [tokens - 12]; empty for fewer.

    Of the run at i: the sum of (token at i + j + 1) * base^(12 - j) over j = 0 … 12, modulo 2^64. It is the difference
    of two running sums of (token at k + 1) * base^-k, times base^(i + 12): five passes instead of 26.
    """
    import numpy as np

    parts = [_hashes(tokens[start : start + CHUNK + GRAM - 1]) for start in range(0, len(tokens) - GRAM + 1, CHUNK)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _hashes(tokens: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    import numpy as np

    up, down = _powers(_BASE, CHUNK + GRAM - 1), _powers(_INVERSE, CHUNK + GRAM - 1)
    count = len(tokens)
    sums = np.zeros(count + 1, np.uint64)
    weighted = tokens + np.uint64(1)
    weighted *= down[:count]  # wraps modulo 2^64, as all that follows
    np.cumsum(weighted, out=sums[1:])
    hashes = sums[GRAM:] - sums[:-GRAM]
    hashes *= up[GRAM - 1 : count]
    return hashes


@functools.lru_cache(maxsize=4)
def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    """base^0, base^1 … modulo 2^64, uint64 [count]."""
    import numpy as np

    powers = np.ones(count, np.uint64)
    known = 1
    while known < count:
        more = min(known, count - known)
        powers[known : known + more] = powers[:more] * np.uint64(pow(base, known, 1 << 64))
        known += more
    return powers


class Grams:
    """The runs of several texts, to be looked for in much longer ones: some 10 s a billion tokens on one core.

    Args:
        texts: tokens of each.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        import numpy as np

        self._of_text = [gram_hashes(np.asarray(text, dtype=np.uint64)) for text in texts]
        self._wanted = np.unique(np.concatenate(self._of_text)) if texts else np.empty(0, np.uint64)
        # the first bits of a hash say of nearly every run that it is none of these, without a search
        self._bits = min(max(16, len(self._wanted).bit_length() + 5), 24)
        self._candidates = np.zeros(1 << self._bits, dtype=bool)
        self._candidates[self._wanted >> np.uint64(64 - self._bits)] = True

    @property
    def sha256(self) -> str:
        """Hash over all runs in their order: equal for equal texts."""
        digest = hashlib.sha256()
        for grams in self._of_text:
            digest.update(len(grams).to_bytes(8, "little") + grams.tobytes())
        return digest.hexdigest()

    def in_stream(self, tokens: npt.NDArray[np.integer]) -> list[bool]:
        """Which texts share a run with a stream of tokens, shape [tokens], e.g. mapped from a file."""
        found = self.nothing()
        self.search(tokens, found)
        return self.texts_with(found)

    def nothing(self) -> npt.NDArray[np.bool_]:
        """For ``search``: no run is found yet."""
        import numpy as np

        return np.zeros(len(self._wanted), dtype=bool)

    def search(self, tokens: npt.NDArray[np.integer], found: npt.NDArray[np.bool_]) -> None:
        """Mark the runs of a part of a stream; parts overlap by ``GRAM`` - 1 tokens. Threads may share ``found``."""
        import numpy as np

        wanted, shift = self._wanted, np.uint64(64 - self._bits)
        for start in range(0, len(tokens) if len(wanted) else 0, CHUNK):
            hashes = gram_hashes(tokens[start : start + CHUNK + GRAM - 1].astype(np.uint64))
            hashes = hashes[self._candidates[(hashes >> shift).view(np.int64)]]
            places = np.searchsorted(wanted, hashes)
            places[places == len(wanted)] = 0
            found[places[wanted[places] == hashes]] = True

    def texts_with(self, found: npt.NDArray[np.bool_]) -> list[bool]:
        """Which texts have a run that ``search`` marked."""
        import numpy as np

        seen = self._wanted[found]
        return [bool(np.isin(grams, seen).any()) for grams in self._of_text]


def texts_in(row: Any) -> Iterator[str]:
    """All text in a row of a benchmark, in the order of its fields."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, dict | list | tuple):
        for item in row.values() if isinstance(row, dict) else row:
            yield from texts_in(item)
