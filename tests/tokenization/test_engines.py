import json
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization.engines import Engine, find_tokenizer, open_tokenizer
from pamp_pipelines.tokenization.tokenizer_spec import describe_tokenizer, require_fit


def encode(engine: Engine, texts: list[str]) -> list[list[int]]:
    tokens, lengths = engine.encode(texts)
    flat = iter(tokens.tolist())
    return [[next(flat) for _ in range(n)] for n in lengths.tolist()]


def changed(tokenizer: Path, folder: Path, **changes: Any) -> Path:
    """The shipped tokenizer.json with other top-level entries, alone in a folder."""
    content = json.loads((tokenizer / "tokenizer.json").read_text()) | changes
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def word_level(folder: Path, vocabulary: dict[str, int], **config: Any) -> Path:
    import tokenizers

    folder.mkdir()
    model = tokenizers.models.WordLevel(vocabulary, unk_token=next(iter(vocabulary)))
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_hugging_face_ids_are_the_librarys(tokenizer: Path, plays: list[str], hard_texts: list[str]) -> None:
    import tokenizers

    reference = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    texts = plays[:20] + hard_texts
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert encode(open_tokenizer(tokenizer), texts) == expected


def test_sentencepiece_ids_are_the_librarys(sentencepiece_model: Path, plays: list[str], hard_texts: list[str]) -> None:
    import sentencepiece

    reference = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    texts = plays[:20] + hard_texts
    assert encode(open_tokenizer(sentencepiece_model), texts) == [reference.encode_as_ids(text) for text in texts]


def test_byte_level_text_comes_back(tokenizer: Path, hard_texts: list[str]) -> None:
    engine = open_tokenizer(tokenizer)
    assert [engine.decode(ids) for ids in encode(engine, hard_texts)] == hard_texts


def test_saved_truncation_and_padding_are_switched_off(tokenizer: Path, tmp_path: Path) -> None:
    settings = {
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "<|pad|>",
        },
    }
    saved = open_tokenizer(changed(tokenizer, tmp_path / "saved", **settings))
    plain = open_tokenizer(tokenizer)
    texts = ["a", "a rather longer text than that"]
    assert encode(saved, texts) == encode(plain, texts)
    assert saved.sha256 == plain.sha256


def test_special_tokens_are_not_added_around_documents(tokenizer: Path, tmp_path: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    with_bos = open_tokenizer(changed(tokenizer, tmp_path / "bos", post_processor=template))
    assert encode(with_bos, ["a text"]) == encode(open_tokenizer(tokenizer), ["a text"])


def test_the_hash_follows_what_decides_ids(tokenizer: Path, sentencepiece_model: Path, tmp_path: Path) -> None:
    base = open_tokenizer(tokenizer).sha256
    lower = open_tokenizer(changed(tokenizer, tmp_path / "lower", normalizer={"type": "Lowercase"}))
    assert lower.sha256 != base
    reformatted = changed(tokenizer, tmp_path / "same")
    assert (reformatted / "tokenizer.json").read_bytes() != (tokenizer / "tokenizer.json").read_bytes()
    assert open_tokenizer(reformatted).sha256 == base
    assert open_tokenizer(sentencepiece_model).sha256 != base


@pytest.mark.parametrize("kind", ["hugging_face", "sentencepiece"])
def test_the_saved_tokenizer_is_the_same_one(
    kind: str, tokenizer: Path, sentencepiece_model: Path, tmp_path: Path, hard_texts: list[str]
) -> None:
    engine = open_tokenizer(tokenizer if kind == "hugging_face" else sentencepiece_model)
    again = open_tokenizer(engine.save(tmp_path))
    assert again.sha256 == engine.sha256
    assert encode(again, hard_texts) == encode(engine, hard_texts)


def test_dropout_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    model = json.loads((tokenizer / "tokenizer.json").read_text())["model"] | {"dropout": 0.1}
    with pytest.raises(InputError, match="dropout"):
        open_tokenizer(changed(tokenizer, tmp_path / "random", model=model))


def test_a_folder_with_both_kinds_gives_the_json(tokenizer: Path, tmp_path: Path) -> None:
    folder = changed(tokenizer, tmp_path / "both")
    (folder / "tokenizer.model").write_bytes(b"x")
    assert find_tokenizer(folder).name == "tokenizer.json"


def test_absent_and_damaged_tokenizers_are_named(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("")
    for path, message in ((tmp_path / "gone", "no such tokenizer"), (tmp_path, r"there is merges\.txt")):
        with pytest.raises(InputError, match=message):
            open_tokenizer(path)
    for name, content in (("tokenizer.json", "{"), ("a.json", "[]"), ("a.model", "x"), ("a.bin", "x")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=name):
            open_tokenizer(tmp_path / name)


def test_eod_is_declared_or_the_eos_token(tokenizer: Path, sentencepiece_model: Path, tmp_path: Path) -> None:
    spec = describe_tokenizer(tokenizer)
    assert (spec.eod, spec.eod_id, spec.vocab_size) == ("<|endoftext|>", 0, 2048)
    assert describe_tokenizer(tokenizer, "<|pad|>").eod_id == 1
    assert describe_tokenizer(sentencepiece_model).eod_id == 2
    vocabulary = {"a": 0, "<end>": 1}
    in_object = word_level(tmp_path / "object", vocabulary, eos_token={"content": "<end>", "special": True})
    assert describe_tokenizer(in_object).eod_id == 1
    in_map = word_level(tmp_path / "map", vocabulary)
    (in_map / "special_tokens_map.json").write_text('{"eos_token": "<end>"}')
    assert describe_tokenizer(in_map).eod_id == 1


def test_a_tokenizer_without_eod_is_refused(tokenizer: Path, sentencepiece_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no token ends a document.*--eod"):
        describe_tokenizer(word_level(tmp_path / "none", {"a": 0}))
    with pytest.raises(InputError, match=r"tokenizer_config\.json, '</s>', is not in the vocabulary"):
        describe_tokenizer(word_level(tmp_path / "other", {"a": 0}, eos_token="</s>"))
    for path in (tokenizer, sentencepiece_model):
        with pytest.raises(InputError, match=r"declared `eod`, '<nosuch>', is not in the vocabulary"):
            describe_tokenizer(path, "<nosuch>")


def test_ids_may_have_gaps(tmp_path: Path) -> None:
    assert describe_tokenizer(word_level(tmp_path / "gap", {"a": 0, "<end>": 70_000}), "<end>").vocab_size == 70_001


def test_a_tokenizer_must_fit_the_model(tokenizer: Path) -> None:
    spec = describe_tokenizer(tokenizer)
    require_fit(spec, "m", 2048)
    require_fit(spec, "m", 2176)
    with pytest.raises(InputError, match=r"highest token id is 2047, but model 'm' has vocab_size 2047"):
        require_fit(spec, "m", 2047)
