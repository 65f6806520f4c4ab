"""The SHA-256 of each tensor: recorded from what the checkpoint holds, found again by what comes later."""

import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import plain_export_job, plain_import_job
from pamp_pipelines.conversion.payload import read_array, write_tensor
from pamp_pipelines.conversion.tensor_manifest import (
    FILE,
    MANIFEST,
    TensorDigest,
    manifest_problems,
    manifest_verdict,
    read_tensor_manifest,
    write_tensor_manifest,
)
from pamp_pipelines.conversion.torch_dist import read_checkpoint
from pamp_pipelines.conversion.verify_files import verify_checkpoint_files
from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.manifest import CheckResult

KEY = "decoder.layers.mlp.linear_fc2.weight"


def recorded(build: Any, output: Path) -> tuple[Path, Artifact]:
    """A source, and its import with the manifest that a verdict writes."""
    source = build("qwen2", False, "bfloat16")

    def verify(directory: Path) -> list[CheckResult]:
        files = verify_checkpoint_files(source, directory)
        write_tensor_manifest(directory / FILE, files.tensors)
        return files.checks

    return source, import_hf(plain_import_job(source, output), verify=verify)


def change(artifact: Path, key: str) -> None:
    """One bit of the first chunk of a tensor, saved as it is then: its own checksum is right."""
    stored = read_checkpoint(artifact / "checkpoint" / "release")
    chunk = stored.tensors[key].chunks[0]
    file = stored.dir / chunk.file
    with file.open("rb+") as stream:
        array = read_array(file, stream, chunk.start, chunk.length)
        stream.seek(array.start)
        data = bytearray(stream.read(math.prod(array.shape) * array.dtype.itemsize))
        data[0] ^= 1
        saved = io.BytesIO()
        assert write_tensor(saved, array.dtype, array.shape, [data]) == chunk.length
        stream.seek(chunk.start)
        stream.write(saved.getvalue())


def test_hashes_are_those_of_the_source(build: Any, in_process: None, tmp_path: Path) -> None:
    source, artifact = recorded(build, tmp_path / "imported")
    found = read_tensor_manifest(artifact.path / FILE)
    assert artifact.manifest.files[-1].path == FILE, "the manifest is part of the artifact"
    tensors = load_file(source / "model.safetensors")
    assert found.keys() == tensors.keys()
    with safe_open(source / "model.safetensors", "pt") as opened:
        for name, tensor in tensors.items():
            assert found[name].dtype == opened.get_slice(name).get_dtype() == "BF16"
            assert found[name].shape == tuple(tensor.shape)
            elements = tensor.view(dtype=torch.int16).numpy().tobytes()
            assert found[name].sha256 == hashlib.sha256(elements).hexdigest()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_export_of_the_import_is_compared(
    workers: int, build: Any, in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pamp_pipelines.conversion import plan

    monkeypatch.setattr(plan, "_PROCESS_BYTES", 1000)
    _, artifact = recorded(build, tmp_path / "imported")
    good = export_hf(plain_export_job(artifact.path, tmp_path / "good", workers=workers))
    (check,) = [c for c in good.manifest.checks if c.name == MANIFEST]
    assert check.passed, check.description
    # resolving the job refuses what is damaged already: here it changes afterwards
    bad_job = plain_export_job(artifact.path, tmp_path / "bad", workers=workers)
    cast_job = plain_export_job(artifact.path, tmp_path / "cast", dtype="float32")
    change(artifact.path, KEY)
    with pytest.raises(VerificationFailed, match="its content is damaged"):
        export_hf(plain_export_job(artifact.path, tmp_path / "refused", workers=workers))
    # copied without its manifest: the hashes of the tensors are what is left to compare with
    (artifact.path / "manifest.json").unlink()
    bad = export_hf(bad_job)
    (check,) = bad.manifest.failed_checks
    assert check.name == MANIFEST
    assert "model.layers.0.mlp.down_proj.weight has SHA-256" in check.description
    cast = export_hf(cast_job)
    assert MANIFEST not in {c.name for c in cast.manifest.checks}, "weights of another type have other hashes"


def test_a_trained_checkpoint_is_not_compared_with_the_import(build: Any, in_process: None, tmp_path: Path) -> None:
    import shutil

    _, artifact = recorded(build, tmp_path / "imported")
    shutil.copytree(artifact.path / "checkpoint" / "release", tmp_path / "iter_0000005")
    trained = tmp_path / "trained"
    (trained / "checkpoint").mkdir(parents=True)
    (tmp_path / "iter_0000005").rename(trained / "checkpoint" / "release")
    change(trained, KEY)
    job = plain_export_job(trained / "checkpoint" / "release", tmp_path / "out", artifact.path / "hf_template")
    assert MANIFEST not in {c.name for c in export_hf(job).manifest.checks}


def test_what_differs_is_named() -> None:
    def tensor(dtype: str = "BF16", rows: int = 3, sha256: str = "a" * 64) -> TensorDigest:
        return TensorDigest(dtype=dtype, shape=(rows, 2), sha256=sha256)

    was = {"same": tensor(), "gone": tensor(), "other": tensor(), "wide": tensor(), "long": tensor()}
    now = {"same": tensor(), "new": tensor(), "other": tensor(sha256="b" * 64), "wide": tensor("F32")}
    now["long"] = tensor(rows=4)
    assert manifest_problems(was, now) == [
        "gone is missing",
        "long is BF16 [4, 2], recorded was BF16 [3, 2]",
        "other has SHA-256 bbbbbbbbbbbb…, recorded was aaaaaaaaaaaa…",
        "wide is F32 [3, 2], recorded was BF16 [3, 2]",
    ]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": "x/9", "tensors": {}}', '{"format": "pamp.tensors/1", "tensors": {"a": 1}}']
)
def test_damaged_manifests_fail_the_verdict(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(InputError, match="import the model again"):
        read_tensor_manifest(tmp_path / FILE)
    verdict = manifest_verdict(tmp_path / FILE, {})
    assert not verdict.passed
    assert str(tmp_path / FILE) in verdict.description


def test_the_file_is_json_in_the_order_of_names(tmp_path: Path) -> None:
    digest = TensorDigest(dtype="F32", shape=(2,), sha256="0" * 64)
    write_tensor_manifest(tmp_path / FILE, {"b": digest, "a": digest})
    content = json.loads((tmp_path / FILE).read_text())
    assert list(content["tensors"]) == ["a", "b"]
    assert content["tensors"]["a"] == {"dtype": "F32", "shape": [2], "sha256": "0" * 64}
    assert read_tensor_manifest(tmp_path / FILE) == {"a": digest, "b": digest}
