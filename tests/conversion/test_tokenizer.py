"""An export opens with AutoTokenizer whatever form the tokenizer came in, and gives the ids of the original."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.conversion.output_config import complete_tokenizer

DATA = Path(__file__).parents[2] / "data"
TEXTS = ["To be, or not to be", "  two  spaces\n\nand\ta tab", "naïve — 日本", "Ünïcödé 12345"]


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-fallback BPE of the kind that Llama 2 has."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("spm")
    rows = (DATA / "corpora/shakespeare/sonnets.jsonl").read_text().splitlines()
    (folder / "text.txt").write_text("\n".join(json.loads(row)["text"] for row in rows[:80]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "m"), vocab_size=600, model_type="bpe",
        byte_fallback=True, character_coverage=0.99, normalization_rule_name="identity", minloglevel=2,
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True,
    )  # fmt: skip
    return folder / "m.model"


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "qwen2"])
def test_bare_sentencepiece(family: str, sentencepiece_model: Path, config_of: Any, tmp_path: Path) -> None:
    import sentencepiece
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = config_of(family)
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(sentencepiece_model, tmp_path / "tokenizer.model")
    note, *others = complete_tokenizer(tmp_path, config)
    assert note.startswith("the tokenizer is a bare tokenizer.model: wrote tokenizer_config.json with")
    assert len(others) == (family == "qwen2")  # whose class transformers takes whatever is declared
    original = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    opener = PreTrainedTokenizerFast if others else AutoTokenizer
    tokenizer = opener.from_pretrained(tmp_path)
    assert len(tokenizer) == original.get_piece_size()
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    for text in TEXTS:
        assert tokenizer(text, add_special_tokens=False).input_ids == original.encode(text), text


def test_bare_tokenizer_json(config_of: Any, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    file = DATA / "tokenizers/shakespeare-bpe-2k/tokenizer.json"
    original = Tokenizer.from_file(str(file))
    config = config_of("llama", bos_token_id=None, eos_token_id=[0, 5], pad_token_id=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(file, tmp_path)
    (note,) = complete_tokenizer(tmp_path, config)
    assert "bare tokenizer.json" in note
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == 0
    assert tokenizer.pad_token_id == 1
    for text in TEXTS:
        ids = original.encode(text, add_special_tokens=False).ids
        assert tokenizer(text, add_special_tokens=False).input_ids == ids


def test_settings_that_exist_are_left_alone(config_of: Any, tmp_path: Path) -> None:
    shutil.copytree(DATA / "tokenizers/shakespeare-bpe-2k", tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "tokenizer_config.json").read_bytes()
    assert complete_tokenizer(tmp_path, config_of("llama")) == []
    assert (tmp_path / "tokenizer_config.json").read_bytes() == before
    empty = tmp_path / "empty"
    empty.mkdir()
    assert complete_tokenizer(empty, config_of("llama")) == []
    assert not any(empty.iterdir())


@pytest.mark.parametrize("with_settings", [False, True])
def test_a_tiktoken_vocabulary_gets_a_tokenizer_json(config_of: Any, tmp_path: Path, with_settings: bool) -> None:
    import base64

    import tiktoken
    from transformers import AutoTokenizer

    pattern = r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    words = [b" be", b"be", b" t", b"to", b" to", b"\xe6\x97", b"  "]
    ranks = {token: rank for rank, token in enumerate([*(bytes([i]) for i in range(256)), *words])}
    lines = [base64.b64encode(token).decode() + f" {rank}\n" for token, rank in ranks.items()]
    (tmp_path / "qwen.tiktoken").write_text("".join(lines))
    (tmp_path / "tiktoken.json").write_text(json.dumps({"pattern": pattern, "special_tokens": {"<|end|>": 263}}))
    if with_settings:
        own = {"tokenizer_class": "QWenTokenizer", "auto_map": {"AutoTokenizer": ["x.Y", None]}, "eos_token": "<|end|>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    config = config_of("llama", bos_token_id=None, eos_token_id=263)
    (tmp_path / "config.json").write_text(json.dumps(config))
    notes = complete_tokenizer(tmp_path, config)
    assert notes[0].startswith("made tokenizer.json of qwen.tiktoken, equal on 14")
    assert len(notes) == 2 - with_settings
    original = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|end|>": 263})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.eos_token, len(tokenizer)) == ("<|end|>", 264)
    for text in [*TEXTS, "a<|end|>b"]:
        assert tokenizer(text, add_special_tokens=False).input_ids == original.encode(text, allowed_special="all")
        assert tokenizer.decode(original.encode(text, allowed_special="all")) == text
