"""Which documents are copies of an earlier one, or similar to one, found by their hashes in bounded memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DIGEST = 16
"""Bytes of a hash."""
_AT_ONCE = 4_000_000
"""Hashes that are sorted at once: some 300 MB."""
_READ_BYTES = 16 << 20
"""Of a file of hashes that is read at once."""

Kept = npt.NDArray[np.bool_]
"""Whether each document of a piece stays, [documents]."""
_Places = npt.NDArray[np.int64]
"""Numbers of documents in the order of the corpus."""


def first_occurrences(hashes: Sequence[Path], at_once: int = _AT_ONCE) -> list[Kept]:
    """For each piece, which of its documents are the first with their text.

    Besides what ``_equal_neighbours`` needs, a byte a document.

    Args:
        hashes: files of hashes of ``DIGEST`` bytes, one a document, in the order of the corpus.
        at_once: bounds memory.
    """
    starts = _starts(hashes, 1)
    kept = np.ones(int(starts[-1]), np.bool_)
    for _, later in _equal_neighbours(hashes, starts, 1, 0, at_once):
        kept[later] = False
    return _by_piece(kept, starts)


def first_of_similar(fingerprints: Sequence[Path], bands: int, at_once: int = _AT_ONCE) -> list[Kept]:
    """For each piece, which of its documents are the first of their cluster.

    Documents with an equal band are in one cluster, so also those that only a third one joins: the clusters of
    datatrove's ``MinhashDedupBuckets`` and ``MinhashDedupCluster``. Besides what ``_equal_neighbours`` needs, 25 bytes
    a document.

    Args:
        fingerprints: files of ``bands`` hashes of ``DIGEST`` bytes a document, in the order of the corpus; a hash of
            zeros equals no other.
        at_once: bounds memory.
    """
    starts = _starts(fingerprints, bands)
    numbers = np.arange(int(starts[-1]), dtype=np.int64)
    first = numbers.copy()
    for band in range(bands):
        for earlier, later in _equal_neighbours(fingerprints, starts, bands, band, at_once):
            first = _united(first, earlier, later)
    return _by_piece(first == numbers, starts)


def _united(first: _Places, one: _Places, other: _Places) -> _Places:
    """Clusters after joining those of ``one`` with those of ``other``; ``first`` is the first document of each's."""
    while True:
        low, high = np.minimum(first[one], first[other]), np.maximum(first[one], first[other])
        if np.array_equal(low, high):
            return first
        np.minimum.at(first, high, low)
        while not np.array_equal(further := first[first], first):
            first = further


def _equal_neighbours(
    files: Sequence[Path], starts: _Places, columns: int, column: int, at_once: int
) -> Iterator[tuple[_Places, _Places]]:
    """Pairs of documents with equal hashes: each document, and the last one before it that has the same.

    The files are read once for every ``at_once`` documents of the corpus: each time those whose hash falls into the
    same part are sorted.
    """
    parts = -(-int(starts[-1]) // at_once)
    for part in range(parts):
        hashes: list[npt.NDArray[np.uint64]] = []
        places: list[_Places] = []
        for path, start in zip(files, starts.tolist(), strict=False):
            pairs = _column(path, columns, column)
            chosen = np.flatnonzero((pairs[:, 0] % np.uint64(parts) == part) & pairs.any(axis=1))
            hashes.append(pairs[chosen])
            places.append(chosen + start)
        both, place = np.concatenate(hashes), np.concatenate(places)
        order = np.lexsort((place, both[:, 1], both[:, 0]))
        equal = _repeats(both[:, 0][order]) & _repeats(both[:, 1][order])
        yield place[order[:-1][equal]], place[order[1:][equal]]


def _column(path: Path, columns: int, column: int) -> npt.NDArray[np.uint64]:
    """One hash of each document of a file as numbers, [documents, 2], without having all of them in memory."""
    width = columns * DIGEST // 8
    at_once = max(1, _READ_BYTES // (columns * DIGEST)) * width
    blocks = [np.empty((0, DIGEST // 8), "<u8")]
    left = path.stat().st_size // 8
    with path.open("rb") as stream:
        # numpy.fromfile takes the memory of all that is asked for, however little there is
        while len(block := np.fromfile(stream, "<u8", min(at_once, left))):
            blocks.append(block.reshape(-1, columns, DIGEST // 8)[:, column].copy())
            left -= len(block)
    return np.concatenate(blocks)


def _repeats(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether each value but the first equals the one before it."""
    return values[1:] == values[:-1]


def _starts(files: Sequence[Path], columns: int) -> _Places:
    """Number of the first document of each file, and of all at the end."""
    sizes = [path.stat().st_size // (DIGEST * columns) for path in files]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _by_piece(kept: Kept, starts: "npt.NDArray[Any]") -> list[Kept]:
    return [kept[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
