"""A finished run is not trained again, so damage in it is told and not passed over."""

from pathlib import Path

import pytest

from pamp_pipelines.errors import VerificationFailed
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.manifest import MANIFEST, FileEntry, Manifest
from pamp_pipelines.training import finished
from pamp_pipelines.training.finished import find_finished
from pamp_pipelines.training.kept import record_path


def write(run_dir: Path, target: Path, kind: str, files: list[str], location: str | None = None) -> None:
    entries = [FileEntry(path=f, bytes=(run_dir / f).stat().st_size, sha256=sha256_file(run_dir / f)) for f in files]
    manifest = Manifest(
        kind=kind,
        id="i",
        content="c",
        created="2026-11-30T00:00:00+00:00",
        inputs=(),
        declaration={},
        producer={},
        files=tuple(entries),
        stats={},
        checks=(),
        location=location,
    )
    target.parent.mkdir(exist_ok=True)
    target.write_text(manifest.model_dump_json())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run_dir = tmp_path / "v0001"
    weights = run_dir / "checkpoints/iter_0000010/__0_0.distcp"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    (run_dir / "metrics.jsonl").write_text("{}\n")
    write(
        run_dir, record_path(run_dir, 10), "checkpoint", [str(weights.relative_to(run_dir))], "checkpoints/iter_0000010"
    )
    write(run_dir, run_dir / MANIFEST, "pretrained_checkpoint", ["metrics.jsonl", "kept/0000010.json"])
    return run_dir


def test_a_whole_run_is_found(run_dir: Path) -> None:
    found = find_finished(run_dir, "i")
    assert found is not None
    assert found.path == run_dir
    assert find_finished(run_dir, "other") is None
    assert find_finished(run_dir.parent, "i") is None


@pytest.mark.parametrize("file", ["metrics.jsonl", "kept/0000010.json", "checkpoints/iter_0000010/__0_0.distcp"])
def test_damage_is_told_with_what_helps(run_dir: Path, file: str) -> None:
    find_finished(run_dir, "i")
    content = (run_dir / file).read_bytes()
    (run_dir / file).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    for _ in range(2):
        with pytest.raises(VerificationFailed, match=r"(?s)is damaged.*from a copy, or .*--fresh") as caught:
            find_finished(run_dir, "i")
        assert file.rpartition("/")[2] in str(caught.value)
        assert "delete" not in str(caught.value)


@pytest.mark.parametrize("file", ["metrics.jsonl", "kept/0000010.json", "checkpoints/iter_0000010/__0_0.distcp"])
def test_a_cut_file_does_not_make_the_run_unfinished(run_dir: Path, file: str) -> None:
    (run_dir / file).write_bytes((run_dir / file).read_bytes()[:-1])
    with pytest.raises(VerificationFailed, match=r"(?s)bytes, the manifest says.*from a copy, or .*--fresh"):
        find_finished(run_dir, "i")


def test_a_damaged_record_beside_those_of_the_manifest_is_told(run_dir: Path) -> None:
    record_path(run_dir, 5).write_text("{")
    with pytest.raises(VerificationFailed, match=r"(?s)0000005.json: not a readable manifest.*--fresh"):
        find_finished(run_dir, "i")


def test_a_run_with_a_damaged_manifest_is_not_finished(run_dir: Path) -> None:
    (run_dir / MANIFEST).write_text("{")
    assert find_finished(run_dir, "i") is None


def test_what_was_compared_is_not_read_again(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_finished(run_dir, "i")
    monkeypatch.setattr("pamp_pipelines.lake.integrity.sha256_file", lambda file: pytest.fail(f"{file} was read"))
    assert finished.find_finished(run_dir, "i") is not None
