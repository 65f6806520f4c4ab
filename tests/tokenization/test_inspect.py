import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.tokenization import inspect
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.indexed import IndexedWriter
from pamp_pipelines.tokenization.inspect import check_shards, inspect_shards
from pamp_pipelines.tokenization.job import TokenizeJob


@pytest.fixture
def shards(make_job: Callable[..., TokenizeJob], plays: list[str]) -> Artifact:
    return tokenize(make_job(plays[:40], fraction=0.2))


def failed(shards: Artifact) -> list[str]:
    checks: list[CheckResult] = check_shards(shards.path, shards.manifest.stats, open_tokenizer(shards.path))
    return [c.name for c in checks if not c.passed]


def rewrite(prefix: Path, change: Callable[[list[list[int]]], list[list[int]]]) -> None:
    from pamp_pipelines.tokenization.indexed import IndexedReader

    reader = IndexedReader(prefix)
    documents = change([reader[i].tolist() for i in range(len(reader))])
    with IndexedWriter(prefix, np.uint16) as writer:
        writer.add(np.concatenate(documents), np.array([len(d) for d in documents]))


def test_documents_are_shown_decoded(shards: Artifact, plays: list[str]) -> None:
    inspection = inspect_shards(shards.path, documents=2, verify="hash")
    assert inspection.passed
    assert [(d.side, d.index) for d in inspection.documents] == [
        ("train", 0),
        ("train", 1),
        ("heldout", 0),
        ("heldout", 1),
    ]
    assert inspection.documents[0].text in {play[:300] for play in plays}
    held_out = [json.loads(line)["text"] for line in (shards.path / "heldout.jsonl").read_text().splitlines()]
    assert inspection.documents[2].text == held_out[0][:300]


def test_a_lost_document_fails_the_counts(shards: Artifact) -> None:
    rewrite(shards.path / "train", lambda documents: documents[:-1])
    assert failed(shards) == ["counts_agree"]


def test_a_missing_eod_fails(shards: Artifact) -> None:
    rewrite(shards.path / "train", lambda documents: [[*documents[0][:-1], 5], *documents[1:]])
    assert failed(shards) == ["documents_end_with_eod"]


@pytest.mark.parametrize("block", [7, 4096])
def test_blocks_do_not_change_the_verdict(shards: Artifact, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(inspect, "_BLOCK", block)
    assert failed(shards) == []
    rewrite(shards.path / "train", lambda documents: [*documents[:-1], [*documents[-1][:-1], 0, 5]])
    checks = check_shards(shards.path, shards.manifest.stats, open_tokenizer(shards.path))
    found = {c.name: c.metadata for c in checks if not c.passed}
    assert found["documents_end_with_eod"]["without"] == 1
    assert found["eod_only_at_the_end"] == {"inside": 1}


def test_an_id_beyond_the_vocabulary_fails(shards: Artifact) -> None:
    rewrite(shards.path / "train", lambda documents: [[2048, *documents[0][1:]], *documents[1:]])
    assert failed(shards) == ["ids_within_vocabulary"]


def test_wrong_offsets_fail(shards: Artifact) -> None:
    path = shards.path / "train.idx"
    whole = path.read_bytes()
    documents = shards.manifest.stats["train"]["documents"]
    for offset in (34 + 4 * documents, len(whole) - 16, len(whole) - 8):
        data = bytearray(whole)
        data[offset] ^= 1
        path.write_bytes(data)
        assert failed(shards) == ["index_agrees"]


def test_shuffled_held_out_documents_fail(shards: Artifact) -> None:
    rewrite(shards.path / "heldout", lambda documents: documents[::-1])
    assert failed(shards) == ["held_out_text_matches"]


def test_lost_held_out_text_fails(shards: Artifact) -> None:
    path = shards.path / "heldout.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert failed(shards) == ["held_out_not_empty"]


def test_files_must_match_the_manifest(shards: Artifact) -> None:
    data = bytearray((shards.path / "train.bin").read_bytes())
    data[0] ^= 1
    (shards.path / "train.bin").write_bytes(data)
    inspect_shards(shards.path)
    with pytest.raises(VerificationFailed, match=r"train\.bin: SHA-256"):
        inspect_shards(shards.path, verify="hash")
    (shards.path / "train.bin").write_bytes(data[:-2])
    with pytest.raises(VerificationFailed, match=r"train\.bin: .* bytes"):
        inspect_shards(shards.path)


def test_only_shards_can_be_inspected(shards: Artifact, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no manifest"):
        inspect_shards(tmp_path)
    shutil.copytree(shards.path, tmp_path / "copy")
    manifest = (tmp_path / "copy/manifest.json").read_text()
    (tmp_path / "copy/manifest.json").write_text(manifest.replace('"tokenized_shards"', '"raw_corpus"', 1))
    with pytest.raises(InputError, match="holds raw_corpus"):
        inspect_shards(tmp_path / "copy")
