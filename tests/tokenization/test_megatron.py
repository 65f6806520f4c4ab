"""Megatron's own reader and builder against ours. Its import takes about ten seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.indexed import IndexedWriter, dtype_for
from pamp_pipelines.tokenization.job import TokenizeJob

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def megatron() -> Any:
    from megatron.core.datasets import indexed_dataset

    return indexed_dataset


@pytest.fixture(scope="module")
def reference_ids(tokenizer: Path) -> Callable[[str], list[int]]:
    import tokenizers

    reference = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return lambda text: reference.encode(text, add_special_tokens=False).ids


def build(megatron: Any, prefix: Path, documents: list[list[int]], dtype: Any) -> None:
    import torch

    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        builder.add_document(torch.tensor(document, dtype=torch.int64), [len(document)])
    builder.finalize(f"{prefix}.idx")


@pytest.mark.parametrize("vocab_size", [65_499, 65_500])
def test_files_equal_those_of_megatrons_builder(megatron: Any, tmp_path: Path, vocab_size: int) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, vocab_size, rng.integers(1, 40)).tolist() for _ in range(200)]
    dtype = megatron.DType.optimal_dtype(vocab_size)
    assert dtype is dtype_for(vocab_size)
    build(megatron, tmp_path / "theirs", documents, dtype)
    with IndexedWriter(tmp_path / "ours", dtype) as writer:
        for part in (documents[:1], documents[1:120], documents[120:]):
            writer.add(np.concatenate(part), np.array([len(d) for d in part]))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()


def test_shards_equal_megatrons_builder_fed_by_the_reference_tokenizer(
    megatron: Any,
    reference_ids: Callable[[str], list[int]],
    make_job: Callable[..., TokenizeJob],
    plays: list[str],
    hard_texts: list[str],
    tmp_path: Path,
) -> None:
    texts = plays[:60] + hard_texts
    artifact = tokenize(make_job(texts, files=3).model_copy(update={"batch_bytes": 20_000}))
    build(megatron, tmp_path / "theirs", [[*reference_ids(t), 0] for t in texts], np.uint16)
    for suffix in ("bin", "idx"):
        assert (artifact.path / f"train.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()


def test_megatrons_dataset_reads_them(
    megatron: Any, reference_ids: Callable[[str], list[int]], make_job: Callable[..., TokenizeJob], plays: list[str]
) -> None:
    artifact = tokenize(make_job(plays, fraction=0.1))
    total = 0
    for side in ("train", "heldout"):
        dataset = megatron.IndexedDataset(str(artifact.path / side), mmap=True)
        assert dataset.document_indices.tolist() == list(range(len(dataset) + 1))
        assert int(dataset.sequence_lengths.sum()) == artifact.manifest.stats[side]["tokens"]
        assert all(int(dataset[i][-1]) == 0 for i in range(len(dataset)))
        total += len(dataset)
    assert total == len(plays)
    dataset = megatron.IndexedDataset(str(artifact.path / "train"), mmap=True)
    assert dataset[0].tolist() == [*reference_ids(plays[0]), 0]
