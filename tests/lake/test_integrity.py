"""A changed byte is found although the size is right, and unchanged files are not read again."""

import os
from pathlib import Path

import pytest

from pamp_pipelines.errors import VerificationFailed
from pamp_pipelines.lake import integrity
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.publish import publish


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    with publish(tmp_path / "a", kind="tokenized_shards", id="i") as draft:
        (draft.dir / "train.bin").write_bytes(b"0123456789")
        (draft.dir / "train.idx").write_bytes(b"index")
    return draft.artifact


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    hash_file = integrity.sha256_file
    monkeypatch.setattr(integrity, "sha256_file", lambda file: (read.append(file.name), hash_file(file))[1])
    return read


def test_what_was_just_published_is_not_read_again(artifact: Artifact, reads: list[str]) -> None:
    assert require_intact_artifact(artifact) == artifact
    assert reads == []


def test_a_flipped_byte_is_found_and_named(artifact: Artifact) -> None:
    (artifact.path / "train.bin").write_bytes(b"0123x56789")
    for _ in range(2):  # a failure is not remembered as seen
        with pytest.raises(VerificationFailed, match=r"train\.bin: its content is damaged"):
            require_intact_artifact(artifact)


def test_a_touched_or_copied_file_is_read_once(artifact: Artifact, reads: list[str]) -> None:
    os.utime(artifact.path / "train.idx", ns=(1, 1))
    require_intact_artifact(artifact)
    require_intact_artifact(artifact)
    assert reads == ["train.idx"]


def test_a_damaged_memory_only_costs_time(artifact: Artifact, reads: list[str]) -> None:
    integrity.memory_of(artifact.path).write_text("{broken")
    require_intact_artifact(artifact)
    assert sorted(reads) == ["train.bin", "train.idx"]
