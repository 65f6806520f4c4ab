"""The committed text, tokenizer and rows are what data/corpora/README.md says."""

import hashlib
import json
from pathlib import Path

from tokenizers import Tokenizer

from pamp_pipelines.evaluation.task_data import numbered_rows

DATA = Path(__file__).parents[2] / "data"
TEXTS = [
    row["text"] for file in sorted((DATA / "corpora/shakespeare").glob("*.jsonl")) for _, row in numbered_rows(file)
]


def test_the_corpus_is_as_described():
    readme = (DATA / "corpora/README.md").read_text()
    assert f"{len(TEXTS)} documents, {sum(map(len, TEXTS)):,} characters" in readme
    assert "gutenberg" not in "".join(TEXTS).lower()
    assert len({hashlib.sha256(text.encode()).digest() for text in TEXTS}) == len(TEXTS)
    assert min(map(len, TEXTS)) > 500
    assert max(map(len, TEXTS)) < 6000


def test_the_tokenizer_keeps_every_text_and_adds_nothing():
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizers/shakespeare-bpe-2k/tokenizer.json"))
    assert tokenizer.get_vocab_size() == 2048
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    for text in [*TEXTS[::20], "混合 text\n\n\tof ünicode 🎭"]:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text
        assert min(ids) > 1, "no special token in text"


def test_sums_are_right():
    rows = [row for _, row in numbered_rows(DATA / "arithmetic/add1.jsonl")]
    assert len({row["problem"] for row in rows}) == len(rows) == 96
    for row in rows:
        a, b = map(int, row["problem"].removeprefix("What is ").removesuffix("?").split(" + "))
        assert f"\\boxed{{{a + b}}}" in row["solution"]


def test_shipped_data_stays_small():
    ignored = {"lake", "dagster_home", "packages", "models", "benchmarks"}
    files = [f for d in DATA.iterdir() if d.name not in ignored for f in ([d] if d.is_file() else d.rglob("*"))]
    assert sum(f.stat().st_size for f in files if f.is_file()) < 1_500_000
    assert json.loads((DATA / "tokenizers/shakespeare-bpe-2k/tokenizer_config.json").read_text())["eos_token"]
