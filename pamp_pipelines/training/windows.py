"""Held-out text cut into windows: the same ones for Megatron's validation and for the recomputation with Hugging Face.

The tokens of a held-out split are read as one sequence, in document order, with the end-of-document tokens that the
shards hold. Window ``w`` predicts the tokens at positions ``w*S + 1 .. w*S + S`` from those at ``w*S .. w*S + S - 1``.
Every token but the first of the split is thus predicted exactly once. The last window is filled with token 0, whose
loss is masked. Nothing is shuffled or dropped, and no context crosses a window.

Axes:
    S  tokens per window (sequence length)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Window(NamedTuple):
    """Model input, what it has to predict, and where that counts."""

    tokens_S: npt.NDArray[np.int64]
    labels_S: npt.NDArray[np.int64]
    loss_mask_S: npt.NDArray[np.float32]


@dataclass(frozen=True)
class HeldOutWindows:
    """Windows over one split.

    Args:
        tokens: token ids of the whole split, shape (T,), any integer dtype; a memory map is not read before it is used.
        sequence_length: S.
    """

    tokens: npt.NDArray[np.integer]
    sequence_length: int

    @property
    def predicted_tokens(self) -> int:
        """Tokens that count in the loss: T - 1, or 0 for an empty split."""
        return max(len(self.tokens) - 1, 0)

    def __len__(self) -> int:
        return -(-self.predicted_tokens // self.sequence_length)

    def __getitem__(self, index: int) -> Window:
        """Window ``index``; one past the last is fully masked, so that counts can be rounded up."""
        if index < 0:
            raise IndexError(index)
        length = self.sequence_length
        start = min(index * length, self.predicted_tokens)
        stretch = np.asarray(self.tokens[start : start + length + 1], dtype=np.int64)
        valid = len(stretch) - 1 if start < self.predicted_tokens else 0
        tokens_S = np.zeros(length, np.int64)
        labels_S = np.zeros(length, np.int64)
        loss_mask_S = np.zeros(length, np.float32)
        tokens_S[:valid] = stretch[:valid]
        labels_S[:valid] = stretch[1 : valid + 1]
        loss_mask_S[:valid] = 1.0
        return Window(tokens_S, labels_S, loss_mask_S)


def share_of_rank(windows: int, rank: int, ranks: int, batch: int) -> list[list[int]]:
    """Window numbers that one data-parallel rank evaluates, in batches of equal size.

    Every rank gets the same number of batches; together they cover ``0 .. windows - 1`` once, and what rounding up adds
    are numbers past the end.

    Args:
        windows: how many there are.
        rank, ranks: data-parallel rank and size.
        batch: windows per batch.
    """
    rounds = -(-windows // (ranks * batch))
    return [list(range((r * ranks + rank) * batch, (r * ranks + rank + 1) * batch)) for r in range(rounds)]
