"""The verdict on a finished run: numbers and checks from its metrics, and its manifest."""

import math
import statistics
from pathlib import Path
from typing import Any

from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.hashing import sha256_file, sha256_json
from pamp_pipelines.lake.manifest import MANIFEST, CheckResult, FileEntry, Manifest
from pamp_pipelines.lake.producer import producer
from pamp_pipelines.lake.publish import utc_now
from pamp_pipelines.training.blend import BLEND, read_realised
from pamp_pipelines.training.curves import grad_norm_growth, loss_spikes, series
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.kept import read_record, recorded_steps
from pamp_pipelines.training.metrics import Metrics, read_metrics
from pamp_pipelines.training.saved import Saved

KIND = "pretrained_checkpoint"
_LOSSES = ("loss", "validation_loss")
_AVERAGED = 10
"""Logged iterations that are averaged at either end of the loss curve: single batches are noisy."""


def ends(losses: list[float]) -> tuple[float, float]:
    """Mean loss at the start and at the end, over up to ten entries each that do not overlap."""
    width = max(1, min(_AVERAGED, len(losses) // 2))
    return statistics.fmean(losses[:width]), statistics.fmean(losses[-width:])


def checks(job: TrainJob, metrics: Metrics) -> list[CheckResult]:
    """``tracker_reached``, ``kept_saved``, ``loss_finite`` and ``loss_fell`` (ERROR); the others warn: ``Limits``."""
    losses, validation = series(metrics, "loss"), series(metrics, "validation_loss")
    bad = [entry["iteration"] for entry in metrics if not all(_finite(entry.get(name, 0.0)) for name in _LOSSES)]
    tracker = Saved(job.checkpoints_dir).tracker()
    results = [
        CheckResult(
            name="tracker_reached",
            passed=tracker == job.iterations,
            description=f"Megatron's tracker names step {tracker}; the run ends at {job.iterations}.",
            metadata={"tracker": tracker, "iterations": job.iterations},
        ),
        _kept_saved(job),
        CheckResult(
            name="loss_finite",
            passed=bool(losses) and not bad,
            description=_finite_text(losses, bad),
            metadata={"entries": len(losses), "not_finite": len(bad)},
        ),
    ]
    results += [loss_spikes(metrics, job.limits), grad_norm_growth(job, metrics)]
    if bad or not losses:
        results.append(CheckResult(name="loss_fell", passed=False, description="There is no finite loss curve."))
        return results
    first, last = ends(losses)
    # one logged entry has no slope to judge
    fell = last < first or len(losses) == 1
    results.append(
        CheckResult(
            name="loss_fell",
            passed=fell,
            description=f"The mean training loss went from {first:.4f} to {last:.4f}.",
            metadata={"first": first, "last": last},
        )
    )
    if validation:
        gap = abs(validation[-1] - last) / last if last else math.inf
        limit = job.limits.validation_gap
        results.append(
            CheckResult(
                name="validation_gap",
                passed=gap <= limit,
                severity="WARN",
                description=f"Validation loss {validation[-1]:.4f}, training loss {last:.4f}: {gap:.1%} apart "
                f"(limit {limit:.0%}).",
                metadata={"validation_loss": validation[-1], "training_loss": last, "gap": gap, "limit": limit},
            )
        )
    return results


def _kept_saved(job: TrainJob) -> CheckResult:
    """Without its last checkpoint a run has no result; an earlier one that is missing leaves a gap in the table."""
    missing = sorted(set(job.cadence) - set(recorded_steps(job.run_dir)))
    listed = ", ".join(map(str, missing))
    return CheckResult(
        name="kept_saved",
        passed=not missing,
        severity="ERROR" if job.iterations in missing else "WARN",
        description=f"Never saved, or damaged: {listed}." if missing else "Every checkpoint to be kept is complete.",
        metadata={"missing": missing},
    )


def _finite_text(losses: list[float], bad: list[int]) -> str:
    if bad:
        return f"Not finite at iterations {', '.join(map(str, bad[:10]))}{' …' if len(bad) > 10 else ''}."
    return f"All {len(losses)} training losses are finite." if losses else "No training loss was logged."


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def stats(job: TrainJob, metrics: Metrics, *, seconds: float, resumed_from: int | None) -> dict[str, Any]:
    """Numbers for people: sizes, losses, speed."""
    losses, validation = series(metrics, "loss"), series(metrics, "validation_loss")
    speed = series(metrics, "tokens_per_second")
    numbers: dict[str, Any] = {
        "iterations": job.iterations,
        "tokens": job.iterations * job.tokens_per_iteration,
        "seconds": round(seconds, 3),
        "mode": job.mode(resumed_from),
        "resumed_from": resumed_from,
        **({"extends": job.extends.name} if job.extends else {}),
        **({"phases": [phase.model_dump() for phase in job.phases]} if job.phases else {}),
        "world_size": job.world_size,
        "kept_steps": recorded_steps(job.run_dir),
    }
    if blend := read_realised(job):
        # how often each corpus was read
        numbers["blend"] = blend
    if losses:
        numbers |= {"first_loss": losses[0], "final_loss": losses[-1]}
    if validation:
        numbers["validation_loss"] = validation[-1]
    if speed:
        # medians leave out the slow first iterations and the saves
        numbers["tokens_per_second"] = statistics.median(speed)
    for name in ("model_tflops", "mfu"):
        if values := series(metrics, name):
            numbers[name] = statistics.median(values)
    if joules := series(metrics, "gpu_joules"):
        # of the reporting process's GPU, taken for all of them
        numbers["energy_kwh"] = sum(joules) * job.world_size / 3.6e6
    if memory := series(metrics, "peak_memory_gib"):
        numbers["peak_memory_gib"] = max(memory)
    return numbers


def write_manifest(job: TrainJob, *, seconds: float, resumed_from: int | None) -> Artifact:
    """Finish the version directory.

    The content covers the kept checkpoints and the loss curve. Rolling resume points are not hashed: they are gone
    after the next run of retention. Files that the manifest lists do not change any more.
    """
    metrics = read_metrics(job.metrics_path)
    kept = {step: read_record(job.run_dir, step).content for step in recorded_steps(job.run_dir)}
    curve = [[entry["iteration"], entry.get("loss"), entry.get("validation_loss")] for entry in metrics]
    manifest = Manifest(
        kind=KIND,
        id=job.id,
        content=sha256_json({"kept": kept, "curve": curve}),
        created=utc_now(),
        inputs=job.inputs,
        declaration=job.declaration,
        producer=producer(),
        files=tuple(_entry(job.run_dir, file) for file in _lasting_files(job)),
        stats=stats(job, metrics, seconds=seconds, resumed_from=resumed_from),
        checks=tuple(checks(job, metrics)),
    )
    write_text(job.run_dir / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    return Artifact(job.run_dir, manifest)


def _lasting_files(job: TrainJob) -> list[Path]:
    files = [
        job.run_dir / "job.json",
        job.run_dir / BLEND,
        job.metrics_path,
        *sorted((job.run_dir / "kept").glob("*.json")),
    ]
    return [file for file in files if file.is_file()]


def _entry(run_dir: Path, file: Path) -> FileEntry:
    name = file.relative_to(run_dir).as_posix()
    return FileEntry(path=name, bytes=file.stat().st_size, sha256=sha256_file(file))
