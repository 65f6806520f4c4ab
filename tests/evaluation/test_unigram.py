import math

import numpy as np
import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation import unigram as module
from pamp_pipelines.evaluation.unigram import unigram
from pamp_pipelines.tokenization.indexed import IndexedWriter


def write(prefix, documents, dtype=np.uint16):
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=dtype), np.array([len(document)]))
    return prefix


def test_equals_the_hand_computed_value(tmp_path):
    train = write(tmp_path / "train", [[0, 1, 1, 3], [1, 3]])
    heldout = write(tmp_path / "heldout", [[1, 2, 3]])
    # counts 1 3 0 2 of 6 tokens, one more each of a vocabulary of 4
    expected = -(math.log(4 / 10) + math.log(1 / 10) + math.log(3 / 10)) / 3
    result = unigram([train], [heldout], vocabulary=4)
    assert result.loss == pytest.approx(expected)
    assert result.perplexity == pytest.approx(math.exp(expected))
    assert (result.train_tokens, result.heldout_tokens) == (6, 3)


def test_a_token_can_be_left_out(tmp_path):
    train = write(tmp_path / "train", [[1, 1, 2, 0], [2, 0]])
    heldout = write(tmp_path / "heldout", [[1, 2, 0]])
    expected = -(math.log(3 / 6) + math.log(3 / 6)) / 2
    assert unigram([train], [heldout], vocabulary=3, without=0).loss == pytest.approx(expected)


def test_shards_are_counted_together(tmp_path):
    documents = np.random.default_rng(0).integers(0, 9, (8, 5)).tolist()
    whole = write(tmp_path / "whole", documents)
    parts = [write(tmp_path / "a", documents[:3]), write(tmp_path / "b", documents[3:])]
    assert unigram(parts, parts, 9) == unigram([whole], [whole], 9)


def test_chunks_add_up(tmp_path, monkeypatch):
    documents = np.random.default_rng(0).integers(0, 50, (40, 23)).tolist()
    train, heldout = (
        write(tmp_path / "train", documents, np.int32),
        write(tmp_path / "heldout", documents[:3], np.int32),
    )
    whole = unigram([train], [heldout], 50)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert unigram([train], [heldout], 50) == whole


def test_wrong_vocabulary_and_empty_shards_are_refused(tmp_path):
    train = write(tmp_path / "train", [[1, 9]])
    with pytest.raises(InputError, match=r"token 9 is outside the vocabulary of 5"):
        unigram([train], [train], vocabulary=5)
    with pytest.raises(InputError, match="no tokens to score"):
        unigram([train], [write(tmp_path / "heldout", [])], vocabulary=10)
