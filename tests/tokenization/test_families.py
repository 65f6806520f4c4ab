"""Shards of every family of tokenizers equal those of Megatron's own builder fed by the family's reference library.

The vocabularies are small and trained here; normalisation, splitting, byte fallback and special tokens are those of the
published files, where families differ. The published vocabularies themselves: benchmarks/tokenizer_families.py.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from pamp_pipelines.lake.events import Event
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.job import TokenizeJob
from pamp_pipelines.tokenization.tiktoken_engine import _byte_symbols
from pamp_pipelines.tokenization.tiktoken_settings import _LLAMA3, _QWEN

pytestmark = pytest.mark.slow

Ids = Callable[[str], list[int]]
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
]
CODE = "def f(x: int = 10_000):\n    if x >= 0:\n\t\t"
CODE += "return {'a': [x**2 for _ in range(10)]}  # 注释\n\n\nclass A(B): pass\n"
CHINESE = "中文维基百科，自由的百科全书。二〇二六年11月30日，北京。\n臺灣繁體與简体混排，「引號」。"


@pytest.fixture(scope="module")
def documents(plays: list[str], hard_texts: list[str]) -> list[str]:
    return [*plays[:25], CODE * 5, CHINESE * 5, *hard_texts, f"{CODE}{CHINESE}"]


@pytest.fixture(scope="module")
def megatron() -> Any:
    from megatron.core.datasets import indexed_dataset

    return indexed_dataset


def split(*patterns: str) -> pre_tokenizers.Sequence:
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


LLAMA2: dict[str, Any] = {
    **{"vocab_size": 700, "model_type": "bpe", "byte_fallback": True, "split_digits": True, "num_threads": 1},
    **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "minloglevel": 2},
    **{"allow_whitespace_only_pieces": True, "character_coverage": 0.995},
}
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
FAMILIES: dict[str, tuple[Callable[[], Any], Any, bool]] = {
    "gpt2": (lambda: pre_tokenizers.ByteLevel(add_prefix_space=False), None, False),
    "llama3": (lambda: split(_LLAMA3), None, True),
    "qwen2": (lambda: split(_QWEN), normalizers.NFC(), False),
    "deepseek": (lambda: split(*DEEPSEEK), normalizers.Sequence([]), False),
    "smollm2": (
        lambda: pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        None,
        False,
    ),
}


def hugging_face(family: str, folder: Path, plays: list[str]) -> tuple[Path, Ids, int]:
    pre, normalizer, ignore_merges = FAMILIES[family]
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    made.normalizer, made.pre_tokenizer, made.decoder = normalizer, pre(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        # SmolLM2's vocabulary lacks bytes that its training text lacked
        initial_alphabet=[] if family == "smollm2" else ALPHABET,
        show_progress=False,
    )
    made.train_from_iterator([*plays[30:80], CODE, CHINESE], trainer)
    made.save(str(folder / "tokenizer.json"))
    return folder, lambda text: made.encode(text, add_special_tokens=False).ids, 0


def sentencepiece_model(folder: Path, plays: list[str], **options: Any) -> tuple[Path, Ids, int]:
    import sentencepiece

    with (folder / "tokenizer.model").open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(line for play in [*plays[30:60], CODE, CHINESE] for line in play.splitlines()),
            model_writer=stream,
            **{**LLAMA2, **options},
        )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return folder, lambda text: list(processor.encode(text)), processor.eos_id()


def tiktoken_vocabulary(folder: Path, plays: list[str]) -> tuple[Path, Ids, int]:
    """As Llama 3's original/tokenizer.model: the ranks of a trained byte-level BPE."""
    hugging_face("llama3", folder, plays)
    byte = {symbol: value for value, symbol in _byte_symbols().items()}
    trained = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    ranks = {bytes(byte[c] for c in token): id - 2 for token, id in trained.items() if id >= 2}
    lines = [base64.b64encode(token).decode() + f" {rank}\n" for token, rank in ranks.items()]
    (folder / "tokenizer.model").write_text("".join(lines))
    special = {"<|endoftext|>": len(ranks)}
    (folder / "tiktoken.json").write_text(json.dumps({"pattern": _LLAMA3, "special_tokens": special}))
    library = tiktoken.Encoding("x", pat_str=_LLAMA3, mergeable_ranks=ranks, special_tokens=special)
    return folder, lambda text: library.encode(text, allowed_special="all"), len(ranks)


MAKE: dict[str, Callable[[Path, list[str]], tuple[Path, Ids, int]]] = {
    **{family: (lambda folder, plays, family=family: hugging_face(family, folder, plays)) for family in FAMILIES},
    "llama2 and mistral": sentencepiece_model,
    "sentencepiece with nfkc": lambda folder, plays: sentencepiece_model(
        folder, plays, normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True
    ),
    "llama3 as tiktoken": tiktoken_vocabulary,
}


@pytest.mark.parametrize("family", list(MAKE))
def test_shards_equal_megatrons(
    megatron: Any,
    make_job: Callable[..., TokenizeJob],
    family: str,
    documents: list[str],
    plays: list[str],
    tmp_path: Path,
) -> None:
    import torch

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer, reference, eod = MAKE[family](folder, plays)
    events: list[Event] = []
    declared = None if "sentencepiece" in family or "mistral" in family else "<|endoftext|>"
    job = make_job(documents, files=3, tokenizer=tokenizer, eod=declared, workers=1)
    artifact = tokenize(job.model_copy(update={"batch_bytes": 20_000}), events.append)
    warnings = [e.data["message"] for e in events if e.kind == "warning"]
    if "nfkc" in family:  # no fast library is exact for it, which is said aloud
        assert "kitoken is not used" in warnings[0]
        assert artifact.manifest.stats["engine"].startswith("sentencepiece")
    else:
        assert warnings == []
        assert artifact.manifest.stats["engine"].split()[0] in ("fastokens", "kitoken")
    assert not artifact.manifest.failed_checks
    builder = megatron.IndexedDatasetBuilder(f"{tmp_path / 'theirs'}.bin", dtype=np.uint16)
    for text in documents:
        ids = [*reference(text), eod]
        builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(ids)])
    builder.finalize(f"{tmp_path / 'theirs'}.idx")
    for suffix in ("bin", "idx"):
        assert (artifact.path / f"train.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()


def test_megatron_reads_indices_beyond_two_billion_tokens(megatron: Any, tmp_path: Path) -> None:
    from pamp_pipelines.tokenization.indexed import bin_path, write_index

    lengths = tmp_path / "lengths"
    np.full(3, 1 << 30, "<i4").tofile(lengths)
    write_index(tmp_path / "a", lengths, np.int32)
    with bin_path(tmp_path / "a").open("wb") as stream:  # sparse: it takes a block of the disk
        stream.truncate(3 << 32)
        stream.seek((3 << 32) - 4)
        stream.write(np.array([7], "<i4").tobytes())
    dataset = megatron.IndexedDataset(str(tmp_path / "a"), mmap=True)
    assert dataset.get(2, offset=(1 << 30) - 2, length=2).tolist() == [0, 7]
    assert int(dataset.sequence_lengths.sum(dtype=np.int64)) == 3 << 30
