"""Which documents are copies of an earlier one, found by their hashes in bounded memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pamp_pipelines.tokenization.pieces import DIGEST

_AT_ONCE = 4_000_000
"""Hashes that are sorted at once: some 300 MB."""

Kept = npt.NDArray[np.bool_]
"""Whether each document of a piece stays, [documents]."""


def first_occurrences(hashes: Sequence[Path], at_once: int = _AT_ONCE) -> list[Kept]:
    """For each piece, which of its documents are the first with their text.

    The files are read once for every ``at_once`` documents of the corpus: each time those whose hash falls into the
    same part are sorted. Besides that, a byte a document is needed.

    Args:
        hashes: files of hashes of ``DIGEST`` bytes, one a document, in the order of the corpus.
    """
    sizes = [path.stat().st_size // DIGEST for path in hashes]
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    kept = np.ones(int(starts[-1]), np.bool_)
    parts = -(-int(starts[-1]) // at_once)
    for part in range(parts):
        high: list[npt.NDArray[np.uint64]] = []
        low: list[npt.NDArray[np.uint64]] = []
        places: list[npt.NDArray[np.int64]] = []
        for path, start in zip(hashes, starts.tolist(), strict=False):
            pairs = np.fromfile(path, "<u8").reshape(-1, 2)
            chosen = np.flatnonzero(pairs[:, 0] % np.uint64(parts) == part)
            high.append(pairs[chosen, 0])
            low.append(pairs[chosen, 1])
            places.append(chosen + start)
        first, second, place = np.concatenate(high), np.concatenate(low), np.concatenate(places)
        order = np.lexsort((place, second, first))
        equal = (np.diff(first[order]) == 0) & (np.diff(second[order]) == 0)
        kept[place[order[1:][equal]]] = False
    return [kept[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
