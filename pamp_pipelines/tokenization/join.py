"""Joining pieces into few large pairs of ``.bin`` and ``.idx``, in the order of the corpus, without encoding again."""

import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pamp_pipelines.tokenization.duplicates import Kept
from pamp_pipelines.tokenization.indexed import bin_path, write_index

_UNSUPPORTED = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_BLOCK = 8 << 20


@dataclass(frozen=True)
class Part:
    """The tokens of one piece."""

    tokens: Path
    lengths: Path
    kept: Kept | None = None
    """Which documents are wanted; None: all."""


@dataclass(frozen=True)
class Pair:
    """A ``.bin`` with its ``.idx``."""

    name: str
    documents: int
    tokens: int


@dataclass(frozen=True)
class _Copy:
    source: Path
    start: int
    bytes: int
    pair: int
    target: int


def join(
    parts: Sequence[Part],
    folder: Path,
    name: str,
    dtype: type[np.integer],
    pair_bytes: int | None,
    threads: int,
) -> list[Pair]:
    """Write ``<name>.bin/.idx``, or ``<name>_00000``, ``<name>_00001`` … where that would exceed ``pair_bytes``.

    A pair ends with the document that fills it, so neither the pieces nor their number show in the result.

    Args:
        pair_bytes: size of ``.bin`` that ends a pair; None: one pair.
        threads: copies at a time.
    """
    width = np.dtype(dtype).itemsize
    copies: list[_Copy] = []
    totals = [[0, 0]]  # documents and bytes of each pair
    lengths_files: list[Path] = [_lengths_path(folder, name, 0)]
    stream = lengths_files[0].open("wb")
    try:
        for part in parts:
            lengths = np.fromfile(part.lengths, "<i4")
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * width
            for first, last in _runs(len(lengths), part.kept):
                start = int(offsets[first])
                ends = offsets[first + 1 : last + 1] - start
                done = 0
                while done < last - first:
                    if pair_bytes is not None and totals[-1][1] >= pair_bytes:
                        stream.close()
                        totals.append([0, 0])
                        lengths_files.append(_lengths_path(folder, name, len(totals) - 1))
                        stream = lengths_files[-1].open("wb")
                    before = int(ends[done - 1]) if done else 0
                    until = last - first
                    if pair_bytes is not None:
                        room = pair_bytes - totals[-1][1] + before
                        until = min(until, int(np.searchsorted(ends, room)) + 1)
                    size = int(ends[until - 1]) - before
                    copies.append(_Copy(part.tokens, start + before, size, len(totals) - 1, totals[-1][1]))
                    stream.write(memoryview(np.ascontiguousarray(lengths[first + done : first + until])).cast("B"))
                    totals[-1][0] += until - done
                    totals[-1][1] += size
                    done = until
    finally:
        stream.close()
    names = [name] if len(totals) == 1 else [f"{name}_{number:05}" for number in range(len(totals))]
    _copy_all(copies, [bin_path(folder / pair) for pair in names], threads)
    for pair, lengths_file in zip(names, lengths_files, strict=True):
        write_index(folder / pair, lengths_file, dtype)
        lengths_file.unlink()
    return [Pair(pair, documents, size // width) for pair, (documents, size) in zip(names, totals, strict=True)]


def _lengths_path(folder: Path, name: str, pair: int) -> Path:
    return folder / f".{name}-{pair}.lengths"


def _runs(documents: int, kept: Kept | None) -> list[tuple[int, int]]:
    """First and last + 1 of each unbroken run of documents that stay."""
    if kept is None or kept.all():
        return [(0, documents)] if documents else []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _copy_all(copies: Sequence[_Copy], targets: Sequence[Path], threads: int) -> None:
    descriptors = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) for path in targets]
    by_source: dict[Path, list[_Copy]] = {}
    for copy in copies:
        by_source.setdefault(copy.source, []).append(copy)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda group: _copy_from(group[0], group[1], descriptors), by_source.items()):
                pass
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _copy_from(source: Path, copies: Sequence[_Copy], targets: Sequence[int]) -> None:
    with source.open("rb", buffering=0) as stream:
        for copy in copies:
            done = 0
            while done < copy.bytes:
                moved = _move(
                    stream.fileno(), copy.start + done, targets[copy.pair], copy.target + done, copy.bytes - done
                )
                if not moved:
                    raise OSError(errno.EIO, f"{source} is shorter than its marker says")
                done += moved


def _move(source: int, start: int, target: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count, start, at)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    # some network and overlay filesystems
    return os.pwrite(target, os.pread(source, min(count, _BLOCK), start), at)
