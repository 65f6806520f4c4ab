"""What all engines share when they encode a batch of texts: threads, and ids in one array."""

import itertools
import os
from collections.abc import Sequence

import numpy as np

from pamp_pipelines.tokenization.indexed import Lengths, Tokens


def threads() -> int:
    """Threads of a library that has no environment variable of its own: as Rust's, all unless a worker says 1."""
    return int(os.environ.get("RAYON_NUM_THREADS") or len(os.sched_getaffinity(0)))


def flatten(ids: Sequence[Sequence[int]]) -> tuple[Tokens, Lengths]:
    """Lists of ids as one array, uint32 [tokens], and the length of each, int64 [texts]."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths
