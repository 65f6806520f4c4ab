"""Hugging Face's loss against Megatron's validation figures: the verdict, where the figures are from, a real run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pamp_pipelines.conversion.job import plain_export_job
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.launchers import run_worker
from pamp_pipelines.tokenization.indexed import IndexedWriter
from pamp_pipelines.training.job import Reference, TrainJob, read_job
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.run import train
from pamp_pipelines.training.saved import Saved
from pamp_pipelines.verification import step_zero
from pamp_pipelines.verification.job import Losses, LossJob, Split, SplitLoss
from pamp_pipelines.verification.loss import LOSS, loss_job, loss_verdict, verify_loss
from pamp_pipelines.verification.stages import export_and_verify
from pamp_pipelines.verification.step_zero import with_reference
from tests.verification.conftest import FAMILIES, Model

STEPS = 4
QUICK = ComputeProfile(grace_s=5.0, threads_per_process=1)
KEY = CheckpointKey("tiny", "short", 1, STEPS)
SHAPES = {"train": (9, 40), "heldout": (5, 37), "other_heldout": (3, 29)}


def _split(loss: float | None, tokens: int = 100, corpus: str = "plays") -> Split:
    return Split(corpus=corpus, prefix=Path("/nowhere/heldout"), megatron_loss=loss, megatron_tokens=tokens)


def _verdict(split: Split, loss: float | None, tokens: int = 100, precision: Any = "fp32") -> CheckResult:
    job = LossJob(name=str(KEY), step=STEPS, splits=(split,), sequence_length=16, precision=precision)
    found = SplitLoss(corpus=split.corpus, loss=loss, tokens=tokens)
    return loss_verdict(job, Losses(splits=(found,), device="cpu", dtype="float32", seconds=1.0))


def test_equal_losses_pass_and_both_figures_are_kept() -> None:
    verdict = _verdict(_split(5.0), 5.00001)
    assert verdict.passed
    assert verdict.name == LOSS
    assert verdict.metadata["splits"]["plays"]["megatron"] == 5.0
    assert verdict.metadata["splits"]["plays"]["hf"] == 5.00001
    assert verdict.metadata["splits"]["plays"]["tokens"] == 100


@pytest.mark.parametrize(
    ("split", "loss", "tokens", "words"),
    [
        (_split(5.0), 5.01, 100, "nats: 0.002 of it apart"),
        (_split(5.0), 5.0, 99, "Megatron predicted 100 tokens, HF 99"),
        (_split(None), 5.0, 100, "not finite"),
        (_split(5.0), None, 100, "not finite"),
    ],
)
def test_what_does_not_agree_is_named(split: Split, loss: float | None, tokens: int, words: str) -> None:
    verdict = _verdict(split, loss, tokens)
    assert not verdict.passed
    assert verdict.severity == "ERROR"
    assert words in verdict.description


def test_bf16_is_allowed_its_rounding_and_fp32_is_not() -> None:
    assert _verdict(_split(5.0), 5.002, precision="bf16").passed
    assert not _verdict(_split(5.0), 5.002).passed


def test_the_reference_is_exact_over_a_large_vocabulary() -> None:
    """Float32 softmax over 50,000 logits is off by 1e-5: more than the tolerance of an fp32 run leaves."""
    import torch

    from pamp_pipelines.verification.loss_worker import _batch_loss

    random = np.random.default_rng(0)
    logits_BSV = random.normal(0, 4, (2, 150, 50_000)).astype(np.float32)
    labels_BS = random.integers(0, 50_000, (2, 150))
    mask_BS = (np.arange(150) < 140).astype(np.float32)[None].repeat(2, 0)

    class Model:
        device = torch.device("cpu")

        def __call__(self, **inputs: Any) -> Any:
            return type("Output", (), {"logits": torch.from_numpy(logits_BSV)})

    exact = np.log(np.exp(logits_BSV.astype(np.float64)).sum(-1))
    exact -= np.take_along_axis(logits_BSV, labels_BS[..., None], -1)[..., 0]
    found = _batch_loss(Model(), labels_BS, labels_BS, mask_BS)
    assert found == pytest.approx(float((exact * mask_BS).sum()), rel=1e-10)


def test_without_a_figure_nothing_is_claimed(tmp_path: Path) -> None:
    job = LossJob(name=str(KEY), step=0, splits=(), sequence_length=16, precision="fp32")
    verdict = verify_loss(tmp_path, job)
    assert verdict.passed
    assert verdict.severity == "WARN"
    assert verdict.metadata == {"compared": False}
    assert "no validation figure for step 0" in verdict.description


def test_shards_that_are_gone(tmp_path: Path) -> None:
    job = LossJob(name=str(KEY), step=2, splits=(_split(5.0),), sequence_length=16, precision="fp32")
    with pytest.raises(InputError, match=r"/nowhere/heldout\.idx: the held-out shards .* are gone"):
        verify_loss(tmp_path, job)


def _train_job(root: Path, model: Model, run_dir: Path) -> TrainJob:
    return TrainJob.model_validate(
        {
            "name": "tiny/short/v0001",
            "run_dir": run_dir,
            "hf_config": FAMILIES["qwen2"],
            "template_dir": model.template,
            "pretrained_checkpoint": model.artifact / "checkpoint",
            "source": model.source,
            "vocab_size": 251,
            "eod_id": 2,
            "train": [{"prefix": root / "train", "weight": 1.0}],
            "heldout": [
                {"corpus": "plays", "prefix": root / "heldout"},
                {"corpus": "sonnets", "prefix": root / "other_heldout"},
            ],
            "sequence_length": 16,
            "iterations": STEPS,
            "global_batch_size": 4,
            "micro_batch_size": 2,
            "optimizer": {"lr": 1e-3, "warmup_iterations": 1},
            "dropout": {},
            "precision": "fp32",
            "parallelism": {},
            "recompute": "none",
            "checkpoint": {"interval": STEPS},
            "validation": {"interval": STEPS},
            "seed": 1,
            "data_seed": 1,
            "determinism": "exact",
            "log_interval": 1,
            "world_size": 1,
        }
    )


def _prepare(root: Path, model: Model) -> tuple[Lake, TrainJob]:
    """Shards, and a version directory with its job.json."""
    random = np.random.default_rng(5)
    for name, (documents, tokens) in SHAPES.items():
        with IndexedWriter(root / name, np.uint16) as writer:
            for _ in range(documents):
                writer.add(random.integers(3, 251, tokens).astype(np.uint16), np.array([tokens]))
    lake = Lake(root / "lake")
    job = _train_job(root, model, lake.version_dir("tiny", "short", 1))
    job.run_dir.mkdir(parents=True)
    (job.run_dir / "job.json").write_text(job.model_dump_json())
    return lake, job


def test_the_figures_of_a_step_come_from_the_run(models: dict[str, Model], tmp_path: Path) -> None:
    lake, job = _prepare(tmp_path, models["qwen2"])
    records = [
        {"iteration": 2, "loss": 7.0},
        {"iteration": 4, "loss": 6.0, "validation": {"plays": {"loss": 6.5, "tokens": 184}}},
    ]
    job.metrics_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = loss_job(lake, KEY)
    assert found is not None
    assert [(s.corpus, s.megatron_loss, s.megatron_tokens) for s in found.splits] == [("plays", 6.5, 184)]
    assert (found.sequence_length, found.precision, found.step) == (16, "fp32", 4)
    before = loss_job(lake, CheckpointKey("tiny", "short", 1, 2))
    assert before is not None
    assert before.splits == ()
    assert loss_job(lake, CheckpointKey("tiny", "short", 2, 4)) is None, "there is no such version"


@pytest.fixture(scope="session")
def trained(models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Artifact]:
    """A tiny Qwen2 trained further by the real worker, and its export with the verdict."""
    root = tmp_path_factory.mktemp("trained")
    lake, job = _prepare(root, models["qwen2"])
    job = with_reference(job)
    assert job.reference is not None
    (job.run_dir / "job.json").write_text(job.model_dump_json())
    run_worker("pamp_pipelines.training.worker", job.run_dir / "job.json", job.run_dir, nproc=1)
    export = plain_export_job(job.checkpoints_dir, root / "export", models["qwen2"].template, workers=1)
    return lake, export_and_verify(export, loss_job(lake, KEY))


@pytest.mark.slow
def test_a_trained_model_has_the_same_loss_after_its_export(trained: tuple[Lake, Artifact]) -> None:
    (verdict,) = (check for check in trained[1].manifest.checks if check.name == LOSS)
    assert verdict.passed, verdict.description
    splits = verdict.metadata["splits"]
    # every token but the first of each split is predicted once
    assert {corpus: split["tokens"] for corpus, split in splits.items()} == {"plays": 184, "sonnets": 86}
    assert all(split["relative_difference"] < 2e-7 for split in splits.values())
    assert all(split["hf"] > 1.0 for split in splits.values())


@pytest.mark.slow
def test_no_step_is_made_from_weights_that_are_not_the_imported_model(
    trained: tuple[Lake, Artifact], models: dict[str, Model], tmp_path: Path
) -> None:
    run_dir = trained[0].version_dir("tiny", "short", 1)
    passed = read_job(run_dir / "job.json")
    assert passed.reference is not None
    # what an import with a wrong tensor would show: HF's model has another loss on one corpus
    losses = {**passed.reference.losses, "sonnets": 1.01 * (passed.reference.losses["sonnets"] or 0.0)}
    wrong = passed.reference.model_copy(update={"losses": losses})
    job = passed.model_copy(
        update={"run_dir": tmp_path / "run", "reference": wrong, "world_size": 2, "id": "e" * 64, "profile": QUICK}
    )
    with pytest.raises(InputError, match="before its first step the model is not the imported one: sonnets: Megatron"):
        train(job)
    assert [record["iteration"] for record in read_metrics(job.metrics_path)] == [0]
    assert Saved(job.checkpoints_dir).steps() == []


def test_the_losses_to_begin_with_are_computed_once_and_only_for_an_import(
    models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job = _prepare(tmp_path, models["qwen2"])
    calls = []

    def computed(module: str, task: Any, *rest: Any) -> Losses:
        calls.append(task)
        found = (SplitLoss(corpus=s.corpus, loss=5.0, tokens=s.megatron_tokens) for s in task.job.splits)
        return Losses(splits=tuple(found), device="cpu", dtype="float32", seconds=1.0)

    monkeypatch.setattr(step_zero, "run", computed)
    first, again = with_reference(job), with_reference(job)
    assert first.reference == again.reference
    assert first.reference is not None
    assert (first.reference.losses, first.reference.tolerance) == ({"plays": 5.0, "sonnets": 5.0}, 2e-5)
    assert [(task.model, task.job.step) for task in calls] == [(models["qwen2"].source, 0)]
    report = job.validation.model_copy(update={"step_0": "report"})
    for other in (
        {"pretrained_checkpoint": None},
        {"heldout": ()},
        {"validation": report},
        {"precision": "fp8_delayed"},
        {"source": tmp_path / "gone"},
    ):
        seen: list[Any] = []
        changed = job.model_copy(update=other)
        assert with_reference(changed, seen.append) == changed
        assert [event.kind for event in seen] == ["warning"] * (len({"precision", "source"} & other.keys()))
    write_checkpoint = Saved(job.checkpoints_dir).dir(2)
    write_checkpoint.mkdir(parents=True)
    assert with_reference(job) == job, "a run that has begun is not compared again"
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("losses", "problem"),
    [
        ({"a": 5.00009, "b": 3.0}, None),
        ({"a": 5.0002, "b": 3.0}, "a: Megatron 5.000200, Hugging Face 5.000000 nats a token (they may differ by 2e-05"),
        ({"a": math.nan, "b": 3.0}, "a: Megatron nan"),
        ({"a": 5.0}, "b: Megatron none, Hugging Face 3.000000"),
    ],
)
def test_what_is_not_the_reference_is_named(losses: dict[str, float], problem: str | None) -> None:
    reference = Reference(source=Path("/hf"), losses={"a": 5.0, "b": 3.0}, tolerance=2e-5)
    found = reference.problem(losses)
    assert (found or "").startswith(problem or "")
    assert (found is None) == (problem is None)
    unknown = Reference(source=Path("/hf"), losses={"a": None}, tolerance=1.0)
    assert "Hugging Face none" in (unknown.problem({"a": 5.0}) or "")


@pytest.mark.slow
def test_a_model_that_is_not_the_trained_one_fails(trained: tuple[Lake, Artifact], models: dict[str, Model]) -> None:
    job = loss_job(trained[0], KEY)
    assert job is not None
    verdict = verify_loss(models["qwen2"].source, job)
    assert not verdict.passed
    assert "of it apart" in verdict.description


@pytest.mark.slow
def test_before_its_first_step_a_run_has_the_imported_models_loss(
    trained: tuple[Lake, Artifact], models: dict[str, Model]
) -> None:
    job = loss_job(trained[0], CheckpointKey("tiny", "short", 1, 0))
    assert job is not None
    verdict = verify_loss(models["qwen2"].source, job)
    assert verdict.metadata["compared"]
    assert verdict.passed, verdict.description
