"""Vocabularies in tiktoken's format, against the tiktoken library and against the tokenizer.json of the same model."""

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.events import Event
from pamp_pipelines.tokenization import build, encoders, tiktoken_settings
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.encoders import choose_encoder, first_difference, open_encoder, probe_texts
from pamp_pipelines.tokenization.engines import find_tokenizer, open_tokenizer
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.tokenization.job import TokenizeJob
from pamp_pipelines.tokenization.pieces import PieceMaker, Plan, Staging
from pamp_pipelines.tokenization.tiktoken_engine import TiktokenEngine, _byte_symbols
from pamp_pipelines.tokenization.tokenizer_spec import describe_tokenizer

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
SPECIAL = {"<|endoftext|>": 0, "<|pad|>": 1}
PROPERTY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def ranks(tokenizer: Path) -> dict[bytes, int]:
    """Those of the shipped byte-level BPE, whose ids are in the order of its merges."""
    byte = {symbol: value for value, symbol in _byte_symbols().items()}
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    return {bytes(byte[c] for c in token): id for token, id in vocabulary.items() if token not in SPECIAL}


def write(folder: Path, ranks: dict[bytes, int], name: str = "x.tiktoken", **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [base64.b64encode(token).decode() + f" {rank}\n" for token, rank in ranks.items()]
    (folder / name).write_text("".join(lines))
    if settings:
        (folder / "tiktoken.json").write_text(json.dumps({"pattern": GPT2, "special_tokens": SPECIAL, **settings}))
    return folder / name


@pytest.fixture(scope="module")
def vocabulary(ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tiktoken"), ranks, eod="<|endoftext|>")


@pytest.fixture(scope="module")
def library(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding("x", pat_str=GPT2, mergeable_ranks=ranks, special_tokens=SPECIAL)


def ids(file: Path, texts: list[str]) -> list[list[int]]:
    tokens, lengths = open_tokenizer(file).encode(texts)
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if texts else []


@PROPERTY
@given(st.lists(st.text(st.characters(codec="utf-8")) | st.sampled_from(["<|pad|>", "a <|endoftext|>b", " \n x"])))
def test_ids_are_the_librarys(vocabulary: Path, library: tiktoken.Encoding, texts: list[str]) -> None:
    expected = [library.encode(text, allowed_special="all") for text in texts]
    assert ids(vocabulary, texts) == expected
    fast = open_encoder(vocabulary, choose_encoder(open_tokenizer(vocabulary), print), "")
    assert fast.name.startswith("fastokens")
    tokens, lengths = fast.encode(texts)
    assert tokens.tolist() == list(itertools.chain(*expected))
    assert lengths.tolist() == [len(of_text) for of_text in expected]


def test_ids_are_those_of_the_same_models_tokenizer_json(
    vocabulary: Path, tokenizer: Path, plays: list[str], hard_texts: list[str]
) -> None:
    texts = plays[:20] + hard_texts + probe_texts(list(SPECIAL))
    ours = open_tokenizer(vocabulary).encode(texts)
    assert first_difference(open_tokenizer(tokenizer).encode(texts), ours) is None


def test_text_comes_back(vocabulary: Path, hard_texts: list[str]) -> None:
    engine = open_tokenizer(vocabulary)
    assert [engine.decode(of_text) for of_text in ids(vocabulary, hard_texts)] == hard_texts


def test_shards(make_job: Callable[..., TokenizeJob], vocabulary: Path, library: Any, plays: list[str]) -> None:
    events: list[Event] = []
    artifact = tokenize(make_job(plays[:40], tokenizer=vocabulary, fraction=0.2), events.append)
    assert [e.kind for e in events] == ["started", "finished"]
    assert artifact.manifest.stats["engine"].startswith("fastokens")
    assert not artifact.manifest.failed_checks
    assert artifact.manifest.stats["eod_id"] == 0
    texts = [json.loads(line)["text"] for line in (artifact.path / "heldout.jsonl").read_text().splitlines()]
    kept = [text for text in plays[:40] if text not in texts]
    reader = IndexedReader(artifact.path / "train")
    assert [reader[i].tolist() for i in range(len(reader))] == [[*library.encode(text), 0] for text in kept]
    again = open_tokenizer(artifact.path)
    assert again.sha256 == open_tokenizer(vocabulary).sha256 == artifact.manifest.stats["tokenizer_sha256"]
    assert again.token_id("<|pad|>") == 1


def test_the_hash_follows_what_decides_ids(ranks: dict[bytes, int], tmp_path: Path, vocabulary: Path) -> None:
    base = open_tokenizer(vocabulary).sha256
    shuffled = dict(sorted(ranks.items()))
    assert open_tokenizer(write(tmp_path / "order", shuffled, eod="<|endoftext|>")).sha256 == base
    assert open_tokenizer(write(tmp_path / "form", ranks, normalization="NFC")).sha256 != base
    assert open_tokenizer(write(tmp_path / "pattern", ranks, pattern=r"\s+|\S+")).sha256 != base


def test_other_settings_beside_a_loaded_vocabulary_count(ranks: dict[bytes, int], tmp_path: Path) -> None:
    file = write(tmp_path, ranks, normalization=None)
    before = open_tokenizer(file).sha256
    write(tmp_path, ranks, normalization="NFKC")
    assert open_tokenizer(file).sha256 != before
    assert ids(file, ["ﬁ"]) == ids(file, ["fi"])


def test_a_model_file_is_told_by_its_content(
    ranks: dict[bytes, int], tmp_path: Path, sentencepiece_model: Path
) -> None:
    file = write(tmp_path / "as_llama", ranks, "tokenizer.model", eod="<|endoftext|>")
    assert find_tokenizer(tmp_path / "as_llama") == file
    assert open_tokenizer(file).name.startswith("tiktoken")
    assert open_tokenizer(sentencepiece_model).name.startswith("sentencepiece")


def test_eod(ranks: dict[bytes, int], tmp_path: Path) -> None:
    file = write(tmp_path, ranks, eod="<|endoftext|>")
    assert describe_tokenizer(tmp_path).eod_id == 0
    assert describe_tokenizer(file, "<|pad|>").eod_id == 1
    write(tmp_path, ranks, eod=None)
    with pytest.raises(InputError, match="no token ends a document"):
        describe_tokenizer(file)


def test_settings_of_a_class_that_is_known(ranks: dict[bytes, int], tmp_path: Path) -> None:
    file = write(tmp_path, {token: rank - 2 for token, rank in ranks.items()}, "tiktoken.model")
    config = {"tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]", "added_tokens_decoder": {}}
    count = len(ranks)
    config["added_tokens_decoder"] = {str(count): {"content": "[BOS]"}, str(count + 1): {"content": "[EOS]"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    spec = describe_tokenizer(tmp_path)
    assert (spec.path, spec.eod, spec.eod_id, spec.vocab_size) == (file, "[EOS]", count + 1, count + 256)
    assert open_tokenizer(file).token_id(f"<|reserved_token_{count + 2}|>") == count + 2
    # Han is cut from what surrounds it
    (together,) = ids(file, ["中文English混合"])
    assert together == list(itertools.chain(*ids(file, ["中文", "English", "混合"])))


def test_published_settings_are_whole() -> None:
    counts = {}
    for published in tiktoken_settings._PUBLISHED.values():
        assert len(set(published.special_tokens.values())) == len(published.special_tokens)
        assert published.eod in published.special_tokens
        counts[max(published.special_tokens.values()) + 1] = len(published.special_tokens)
        tiktoken.Encoding(
            "x", pat_str=published.pattern, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
        )
    assert counts == {128_256: 256, 202_048: 2048, 151_851: 208, 248_077: 33, 50_257: 1, 100_277: 5, 200_019: 2}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("IQ== 0\n\nnot base64 1\n", "line 3: .*is not base64, a space and a rank"),
        ("IQ== 0\nIQ== 1\n", "occurs twice"),
        ("IQ== 0\nIg== 0\n", "occurs twice"),
        ("IQ== 0\n", "no token for 255 of the 256 bytes, e.g. 0x00"),
    ],
)
def test_damaged_vocabularies_are_named(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "a.tiktoken").write_text(lines)
    with pytest.raises(InputError, match=rf"a\.tiktoken: .*{message}"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "("}, "tiktoken refuses the pattern"),
        ({"special_tokens": {"<a>": 5}}, r"ids of special tokens are ranks of other tokens: <a> \(5\)"),
        ({"special_tokens": {"<a>": 0, "<b>": 0}}, "two special tokens have one id"),
        ({"patern": ""}, r"tiktoken\.json: not the settings of a tiktoken vocabulary"),
    ],
)
def test_settings_that_cannot_be_meant_are_named(
    ranks: dict[bytes, int], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_tokenizer(write(tmp_path, ranks, **changes))


def test_an_unknown_vocabulary_says_what_to_write(ranks: dict[bytes, int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'Write .*tiktoken\.json: \{"pattern"'):
        open_tokenizer(write(tmp_path, ranks))
    write(tmp_path, ranks, "y.tiktoken")
    with pytest.raises(InputError, match="2 tiktoken vocabularies: name one"):
        open_tokenizer(tmp_path)


def test_the_json_for_the_fast_encoder_has_the_same_merges(vocabulary: Path) -> None:
    engine = TiktokenEngine(vocabulary)
    whole, fast = json.loads(engine.tokenizer_json), json.loads(engine.fast_json)
    assert fast["model"].pop("merges") == [" ".join(merge) for merge in whole["model"].pop("merges")]
    assert fast == whole


def test_workers_get_the_converted_vocabulary(
    make_job: Callable[..., TokenizeJob], vocabulary: Path, plays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that had to make it would hold the engine, and take a second longer to start."""
    job = make_job(plays[:8], files=2, tokenizer=vocabulary, workers=2).model_copy(update={"task_bytes": 20_000})
    expected = tokenize(job.model_copy(update={"workers": 1, "output": job.output.with_name("one")}))

    def as_a_new_process(plan: Plan, staging: Staging, tasks: Sequence[int], *_: Any) -> None:
        monkeypatch.setattr(encoders, "_open", {})
        monkeypatch.setattr(encoders, "open_tokenizer", lambda _: pytest.fail("the vocabulary was read again"))
        maker = PieceMaker(plan, staging)
        for task in tasks:
            maker.make(task, lambda *_: None)

    monkeypatch.setattr(build, "make_pieces", as_a_new_process)
    assert tokenize(job).content == expected.content
