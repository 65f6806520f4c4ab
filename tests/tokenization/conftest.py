import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.declarations.corpus import HeldOut
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job

SHIPPED = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture(scope="session")
def tokenizer() -> Path:
    """A byte-level BPE with 2,048 ids, whose EOD is id 0."""
    return SHIPPED / "tokenizers/shakespeare-bpe-2k"


@pytest.fixture(scope="session")
def plays() -> list[str]:
    """332 real documents, 605 kB."""
    files = sorted((SHIPPED / "corpora/shakespeare").glob("*.jsonl"))
    return [json.loads(line)["text"] for file in files for line in file.read_text().splitlines()]


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory, plays: list[str]) -> Path:
    """A real model with byte fallback and SentencePiece's own NFKC rule, 500 ids, eos </s> = 2."""
    import sentencepiece

    path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    with path.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(line for play in plays[::10] for line in play.splitlines()),
            model_writer=stream,
            vocab_size=500,
            model_type="bpe",
            byte_fallback=True,
            num_threads=1,
            minloglevel=2,
        )
    return path


@pytest.fixture(scope="session")
def hard_texts() -> list[str]:
    """Texts that break careless tokenization."""
    return [
        "plain",
        " ",
        "  \n\n\t  ",
        "\0",
        "a\0b",
        "\r\nx\r",
        "\u00a0\u2003\u3000\u200b\ufeff",
        "ﬁne ｆｕｌｌ １２３ ①",
        "e\u0301 \u00e9 a\u0300\u0301\u0302",
        "中文與English混排。",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "العربية עברית हिन्दी ไทย 한국어",
        "\U0010ffff\ue000",
        "<|endoftext|>",
        "a <|endoftext|> b <|pad|> <s> </s> <unk>",
        "▁ ▁▁x",
        "a" * 5000,
        " " * 3000,
        "don't WE'LL I'VE x'ſ",
        "0123456789" * 50,
    ]


@pytest.fixture
def make_job(tmp_path: Path, tokenizer: Path) -> Callable[..., TokenizeJob]:
    """A job on texts, spread over ``files`` JSONL files in order."""

    def make(
        texts: Iterable[str], *, files: int = 1, fraction: float = 0.0, seed: int = 0, out: str = "out", **more: Any
    ) -> TokenizeJob:
        folder = tmp_path / f"{out}-text"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        rows: Sequence[str] = [json.dumps({"text": text}) + "\n" for text in texts]
        size = -(-len(rows) // files) or 1
        for index in range(files):
            (folder / f"{index:03}.jsonl").write_text("".join(rows[index * size : (index + 1) * size]))
        return plain_tokenize_job(
            [str(folder)],
            more.pop("tokenizer", tokenizer),
            tmp_path / out,
            held_out=HeldOut(fraction=fraction, seed=seed),
            **more,
        )

    return make
