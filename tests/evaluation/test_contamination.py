import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pamp_pipelines.corpus import grams
from pamp_pipelines.corpus.grams import GRAM, Grams, gram_hashes
from pamp_pipelines.evaluation import contamination
from pamp_pipelines.evaluation.contamination import documents_in_training, seen_in_training
from pamp_pipelines.tokenization.indexed import IndexedWriter

TOKENS = st.integers(0, 2)  # few, so that runs repeat


def write(prefix, documents, dtype=np.uint16):
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=dtype), np.array([len(document)]))
    return prefix


def test_documents_are_found_token_for_token(tmp_path):
    heldout = write(tmp_path / "heldout", [[1, 2, 3], [4, 5], [6, 7, 8]])
    train = [
        write(tmp_path / "a", [[1, 2, 4], [6, 7, 8, 9], [5, 4]]),
        write(tmp_path / "b", [[6, 7, 8], [6, 7, 8]], np.int32),  # another type, twice
    ]
    assert documents_in_training([heldout], train[:1]) == (0, 3)
    assert documents_in_training([heldout], train) == (1, 3)


@settings(max_examples=40)
@given(
    train=st.lists(st.lists(TOKENS, min_size=1, max_size=60), min_size=1, max_size=4),
    texts=st.lists(st.lists(TOKENS, max_size=40), max_size=4),
)
def test_runs_are_found_as_by_comparing_all(train, texts, tmp_path_factory):
    flat = [token for document in train for token in document]
    runs = {tuple(flat[i : i + GRAM]) for i in range(len(flat) - GRAM + 1)}
    expected = [any(tuple(t[i : i + GRAM]) in runs for i in range(len(t) - GRAM + 1)) for t in texts]
    prefix = write(tmp_path_factory.mktemp("runs") / "train", train)
    assert seen_in_training(texts, [prefix]) == expected


def test_chunks_hide_nothing_and_large_shards_are_left_alone(tmp_path, monkeypatch):
    document = np.random.default_rng(0).integers(0, 1000, 400).tolist()
    prefix = write(tmp_path / "train", [document])
    texts = [document[start : start + GRAM] for start in range(0, 380, 5)] + [document[:12], [*document[:12], 1001]]
    monkeypatch.setattr(grams, "CHUNK", 7)
    assert seen_in_training(texts, [prefix]) == [True] * 76 + [False, False]
    monkeypatch.setattr(contamination, "MOST_TOKENS", 399)
    assert seen_in_training(texts, [prefix]) is None


def test_a_shard_is_searched_once_for_equal_texts(tmp_path, monkeypatch):
    (tmp_path / "shard").mkdir()
    document = list(range(100))
    train = [write(tmp_path / f"shard/{name}", [document[start:]]) for name, start in (("a", 0), ("b", 50))]
    texts = [document[:20], document[60:80], list(range(500, 520))]
    assert seen_in_training(texts, train) == [True, True, False]

    def again(*_):
        raise AssertionError("searched again")

    with monkeypatch.context() as patched:
        patched.setattr(Grams, "in_stream", again)
        assert seen_in_training(texts, train) == [True, True, False]
        assert seen_in_training(texts, train[1:]) == [False, True, False], "each shard for itself"
        with pytest.raises(AssertionError, match="searched again"):
            seen_in_training(texts[:2], train)
    write(train[0], [list(range(500, 600))])
    assert seen_in_training(texts, train) == [False, True, True], "a shard that was written anew is searched anew"
    for memory in (tmp_path / ".shard.seen").iterdir():
        memory.write_text("[tru")
    assert seen_in_training(texts, train) == [False, True, True]


@pytest.mark.parametrize("count", [0, 12])
def test_short_texts_have_no_run(count):
    assert len(gram_hashes(np.zeros(count, np.uint64))) == 0
    assert len(gram_hashes(np.zeros(count + GRAM, np.uint64))) == count + 1
