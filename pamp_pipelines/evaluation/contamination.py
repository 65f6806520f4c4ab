"""Whether a model has seen what it is scored on: by whole documents, and by runs of 13 tokens.

The tokens are those of the model's own tokenizer, since the shards are what training read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pamp_pipelines.corpus.grams import Grams
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.hashing import sha256_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_TOKENS = 10_000_000_000
"""Training tokens beyond which runs are not searched for."""


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

    What was found in a shard is remembered beside it: every checkpoint of a run asks the same.

    Args:
        texts: token ids of each.
        train: prefixes of the shards.
    """
    from pamp_pipelines.tokenization.indexed import IndexedReader

    readers = {prefix: IndexedReader(prefix) for prefix in train}
    if sum(len(reader.tokens) for reader in readers.values()) > MOST_TOKENS:
        return None
    grams = Grams(texts)
    seen = [False] * len(texts)
    for prefix, reader in readers.items():
        memory = _memory(prefix, grams)
        found = _recall(memory, len(texts))
        if found is None:
            found = grams.in_stream(reader.tokens)
            with contextlib.suppress(OSError):  # a lake that cannot be written to is searched each time
                memory.parent.mkdir(exist_ok=True)
                write_json(memory, found)
        seen = [before or now for before, now in zip(seen, found, strict=True)]
    return seen


def _memory(prefix: Path, grams: Grams) -> Path:
    """Where it is remembered which texts a shard has runs of: beside the artifact, by texts and state of the file."""
    from pamp_pipelines.tokenization.indexed import bin_path

    state = bin_path(prefix).stat()
    name = sha256_json([prefix.name, grams.sha256, state.st_size, state.st_mtime_ns])
    return prefix.parent.with_name(f".{prefix.parent.name}.seen") / f"{name[:32]}.json"


def _recall(memory: Path, texts: int) -> list[bool] | None:
    try:
        found = json.loads(memory.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, list) and len(found) == texts else None
