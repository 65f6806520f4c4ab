"""Held-out windows: every token once, in order, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pamp_pipelines.training.windows import HeldOutWindows, share_of_rank


def tokens(count: int) -> np.ndarray:
    return np.arange(1000, 1000 + count, dtype=np.uint16)


@given(count=st.integers(0, 70), length=st.integers(1, 20))
def test_every_token_but_the_first_is_predicted_once_from_the_one_before(count: int, length: int) -> None:
    windows = HeldOutWindows(tokens(count), length)
    seen = []
    for number in range(len(windows)):
        window = windows[number]
        assert window.tokens_S.shape == window.labels_S.shape == window.loss_mask_S.shape == (length,)
        counted = window.loss_mask_S == 1.0
        np.testing.assert_array_equal(window.labels_S[counted], window.tokens_S[counted] + 1)
        assert not window.tokens_S[~counted].any()
        assert not window.labels_S[~counted].any()
        seen += window.labels_S[counted].tolist()
    assert seen == tokens(count)[1:].tolist()
    assert windows.predicted_tokens == len(seen)


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10])
def test_windows_past_the_end_count_nothing(count: int) -> None:
    windows = HeldOutWindows(tokens(count), 3)
    assert not windows[len(windows)].loss_mask_S.any()
    assert not windows[len(windows) + 5].loss_mask_S.any()


@given(windows=st.integers(0, 50), ranks=st.integers(1, 5), batch=st.integers(1, 4))
def test_ranks_share_the_windows_in_equal_batches(windows: int, ranks: int, batch: int) -> None:
    shares = [share_of_rank(windows, rank, ranks, batch) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert all(len(numbers) == batch for share in shares for numbers in share)
    numbers = sorted(number for share in shares for batch_ in share for number in batch_)
    assert numbers == list(range(len(numbers)))
    assert windows <= len(numbers) < windows + ranks * batch
