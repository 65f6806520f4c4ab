"""Hugging Face's loss on an export against Megatron's validation loss over the very same windows.

This closes the circle: training, checkpoint and export agree on what the model is, measured on real held-out text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.training_config import Precision
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import MANIFEST, CheckResult
from pamp_pipelines.lake.staging import here
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.training.job import read_job
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.verification.job import Losses, LossJob, LossWork, Split, SplitLoss
from pamp_pipelines.verification.process import run, scratch

LOSS = "loss_matches_megatron"
WORKER = "pamp_pipelines.verification.loss_worker"
LOSSES = "losses.json"

TOLERANCE: Mapping[Precision, float] = {
    "fp32": 2e-5,
    "tf32": 1e-3,
    "bf16": 1e-3,
    "fp16": 1e-3,
    "fp8_delayed": 2e-2,
    "fp8_tensorwise": 2e-2,
    "fp8_blockwise": 2e-2,
}
"""Largest difference of the mean losses, relative to Megatron's, by what the run computed in.

Hugging Face computes in float32 where that fits into memory, and its softmax in float64, so the tolerance is that of
Megatron's rounding. Measured on CPUs: SmolLM2-135M over 2,542 tokens came out within 2e-8 in fp32, 3e-5 in bf16.
The limits leave room for fewer tokens, over which rounding averages out less.
"""


def loss_job(lake: Lake, key: CheckpointKey) -> LossJob | None:
    """Megatron's validation figures at a kept checkpoint, from its version directory.

    Args:
        lake: where the run lies.
        key: the checkpoint.

    Returns:
        None where the run has no held-out text, or where there is no such run.

    Raises:
        InputError: the version directory's job.json is damaged.
    """
    run_dir = lake.version_dir(key.model, key.training_config, key.version)
    if not (run_dir / "job.json").is_file():
        return None
    train = read_job(run_dir / "job.json")
    if not train.heldout:
        return None
    figures: dict[str, Any] = {}
    for record in read_metrics(run_dir / "metrics.jsonl"):
        if record["iteration"] == key.step and "validation" in record:
            figures = record["validation"]
    splits = [
        Split(
            corpus=shards.corpus,
            prefix=_in_lake(lake, shards.prefix),
            megatron_loss=figures[shards.corpus]["loss"],
            megatron_tokens=figures[shards.corpus]["tokens"],
        )
        for shards in train.heldout
        if shards.corpus in figures
    ]
    return LossJob(
        name=str(key),
        step=key.step,
        splits=tuple(splits),
        sequence_length=train.sequence_length,
        precision=train.precision,
    )


def _in_lake(lake: Lake, prefix: Path) -> Path:
    """A shard's prefix in this lake, where it is there: the job may hold the paths of another machine."""
    folder = lake.shards_dir(prefix.parent.parent.name, prefix.parent.name)
    return folder / prefix.name if (folder / MANIFEST).is_file() else prefix


def verify_loss(model: Path, job: LossJob, on_event: OnEvent = ignore) -> CheckResult:
    """The check `loss_matches_megatron` on a Hugging Face directory.

    Args:
        model: the export.
        job: Megatron's figures.
        on_event: gets the worker's events: windows done.

    Raises:
        InputError: the held-out shards are gone.
        WorkerFailed: Hugging Face could not load or run the model.
    """
    if not job.splits:
        return not_compared(f"Megatron has no validation figure for step {job.step} of {job.name}.")
    for split in job.splits:
        for suffix in (".idx", ".bin"):
            here(split.prefix.with_name(split.prefix.name + suffix))
        if not split.prefix.with_name(split.prefix.name + ".idx").is_file():
            raise InputError(f"{split.prefix}.idx: the held-out shards that {job.name} was validated on are gone")
    with scratch() as work:
        task = LossWork(work=work, model=model.absolute(), job=job)
        losses = run(WORKER, task, work, Losses, LOSSES, on_event, {})
    return loss_verdict(job, losses)


def not_compared(reason: str) -> CheckResult:
    """The check where there is nothing to compare with: no failure, and no proof either."""
    return CheckResult(
        name=LOSS,
        passed=True,
        severity="WARN",
        description=f"Not compared. {reason}",
        metadata={"compared": False},
    )


def loss_verdict(job: LossJob, losses: Losses) -> CheckResult:
    """Judges each split: the same number of tokens, and losses within the tolerance of the run's precision."""
    tolerance = TOLERANCE[job.precision]
    found = {split.corpus: split for split in losses.splits}
    problems, table = [], {}
    for split in job.splits:
        theirs = found[split.corpus]
        problems += _problems(split, theirs, tolerance)
        table[split.corpus] = {
            "megatron": split.megatron_loss,
            "hf": theirs.loss,
            "tokens": theirs.tokens,
            "relative_difference": _relative(split, theirs),
        }
    text = "; ".join(problems) or "; ".join(
        f"{corpus}: Megatron {row['megatron']:.6f}, HF {row['hf']:.6f} nats over {row['tokens']} tokens"
        for corpus, row in table.items()
    )
    return CheckResult(
        name=LOSS,
        passed=not problems,
        description=text,
        metadata={
            "compared": True,
            "splits": table,
            "tolerance": tolerance,
            "precision": job.precision,
            "hf_dtype": losses.dtype,
            "device": losses.device,
            "seconds": losses.seconds,
        },
    )


def _problems(ours: Split, theirs: SplitLoss, tolerance: float) -> list[str]:
    problems = []
    if ours.megatron_tokens != theirs.tokens:
        problems.append(f"{ours.corpus}: Megatron predicted {ours.megatron_tokens} tokens, HF {theirs.tokens}")
    relative = _relative(ours, theirs)
    if relative is None:
        problems.append(f"{ours.corpus}: a loss is not finite: Megatron {ours.megatron_loss}, HF {theirs.loss}")
    elif relative > tolerance:
        problems.append(
            f"{ours.corpus}: Megatron's loss is {ours.megatron_loss:.6f}, HF's {theirs.loss:.6f} nats: "
            f"{relative:.2g} of it apart, allowed are {tolerance:.2g}"
        )
    return problems


def _relative(ours: Split, theirs: SplitLoss) -> float | None:
    if ours.megatron_loss is None or theirs.loss is None:
        return None
    difference = abs(ours.megatron_loss - theirs.loss)
    return difference / max(abs(ours.megatron_loss), math.ulp(1.0))
