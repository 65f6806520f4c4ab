"""Conversions with their verdicts: what is in the manifest, and that one changed number in an artifact is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import ImportJob, plain_import_job
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.verification.checkpoint import verify_checkpoint
from pamp_pipelines.verification.compare import LOGITS
from pamp_pipelines.verification.construction import CONSTRUCTION
from pamp_pipelines.verification.divisions import RELOADED
from pamp_pipelines.verification.stages import import_and_verify
from tests.conftest import DATA
from tests.verification.conftest import FAMILIES, Model

STATIC = ["source_complete", "checkpoint_complete", "bit_exact_round_trip"]


def test_the_verdict_is_asked_for_before_the_artifact_appears(models: dict[str, Model], tmp_path: Path) -> None:
    seen = []

    def verify(directory: Path) -> Sequence[CheckResult]:
        seen.append((directory / "checkpoint/release/.metadata").is_file() and not (tmp_path / "out").exists())
        return [CheckResult(name="mine", passed=False)]

    artifact = import_hf(plain_import_job(models["llama"].source, tmp_path / "out", workers=1), verify=verify)
    assert seen == [True]
    assert [check.name for check in artifact.manifest.failed_checks] == ["mine"]


def test_a_model_from_scratch_claims_nothing(tmp_path: Path) -> None:
    job = ImportJob(
        name="scratch",
        id="0" * 64,
        output=tmp_path / "out",
        config=FAMILIES["llama"],
        tokenizer=DATA / "tokenizers/shakespeare-bpe-2k",
    )
    checks = {check.name: check for check in import_and_verify(job).manifest.checks}
    assert checks[LOGITS].severity == "WARN"
    assert checks[LOGITS].metadata == {"compared": False}


@pytest.mark.slow
def test_an_import_made_without_a_verdict_gets_one(models: dict[str, Model], tmp_path: Path) -> None:
    model = models["qwen3"]
    shutil.copytree(model.artifact, tmp_path / "out")
    before = read_artifact(tmp_path / "out")
    after = import_and_verify(plain_import_job(model.source, tmp_path / "out", workers=1), layers=1)
    assert (after.id, after.content) == (before.id, before.content)
    checks = {check.name: check for check in read_artifact(tmp_path / "out").manifest.checks}
    assert all(checks[name].passed for name in [*STATIC, CONSTRUCTION, LOGITS])
    assert checks["tensor_manifest"].severity == "WARN", "files of a finished artifact stay what they are"
    assert checks[LOGITS].metadata["layers"] == 1


@pytest.mark.slow
def test_changing_only_the_stored_rotary_base_is_found(models: dict[str, Model], tmp_path: Path) -> None:
    model = models["llama"]
    shutil.copytree(model.artifact, tmp_path / "out")
    file = tmp_path / "out/hf_template/config.json"
    config = json.loads(file.read_text())
    config["rope_parameters"]["rope_theta"] = 10000.0
    file.write_text(json.dumps(config))
    checks = {check.name: check for check in verify_checkpoint(model.source, tmp_path / "out")}
    assert all(checks[name].passed for name in STATIC), "the weights are what they were"
    assert not checks[CONSTRUCTION].passed
    assert not checks[LOGITS].passed


@pytest.mark.parametrize(
    ("changed", "severity"), [(("source", "out/hf_template"), "WARN"), (("out/hf_template",), "ERROR")]
)
def test_a_model_that_megatron_cannot_train_is_not_compared(
    models: dict[str, Model], tmp_path: Path, changed: tuple[str, ...], severity: str
) -> None:
    """A warning where the source is such a model; an artifact that only claims to be one is wrong."""
    shutil.copytree(models["llama"].source, tmp_path / "source")
    shutil.copytree(models["llama"].artifact, tmp_path / "out")
    for folder in changed:
        file = tmp_path / folder / "config.json"
        scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
        file.write_text(json.dumps({**json.loads(file.read_text()), "rope_parameters": scaling}))
    checks = {check.name: check for check in verify_checkpoint(tmp_path / "source", tmp_path / "out")}
    assert all(checks[name].passed for name in STATIC)
    for name in (LOGITS, RELOADED):
        assert not checks[name].passed
        assert checks[name].severity == severity
        assert "rope scaling of type 'dynamic'" in checks[name].description


def test_the_hashes_of_an_import_are_recorded_and_compared(models: dict[str, Model], tmp_path: Path) -> None:
    """On a model that Megatron is not asked to run, since the rest of the verdict is not what is tested."""
    source = tmp_path / "source"
    shutil.copytree(models["llama"].source, source)
    config = json.loads((source / "config.json").read_text())
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (source / "config.json").write_text(json.dumps(config | {"rope_parameters": scaling}))
    artifact = import_and_verify(plain_import_job(source, tmp_path / "out", workers=1))
    file = artifact.path / "tensors.json"
    assert file.name in {entry.path for entry in artifact.manifest.files}

    def verdict() -> CheckResult:
        (check,) = [c for c in verify_checkpoint(source, artifact.path) if c.name == "tensor_manifest"]
        return check

    assert verdict().passed
    content = json.loads(file.read_text())
    content["tensors"]["model.norm.weight"]["sha256"] = "0" * 64
    file.write_text(json.dumps(content))
    assert (verdict().passed, verdict().severity) == (False, "ERROR")
    assert "model.norm.weight has SHA-256" in verdict().description
    file.unlink()
    assert (verdict().passed, verdict().severity) == (False, "WARN")


def test_every_family_has_its_own_rotary_base() -> None:
    """Otherwise a base taken from a default would go unnoticed."""
    bases = [family["rope_parameters"]["rope_theta"] for family in FAMILIES.values()]
    assert len(set(bases)) == len(bases)
    assert 10000.0 not in bases
