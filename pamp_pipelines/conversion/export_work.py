"""The export itself, in the worker process: template, config.json, weights, index.

What was finished before an export was killed lies beside the output and is not written again.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pamp_pipelines.conversion import tensor_manifest
from pamp_pipelines.conversion.buckets import buckets_dir, sweep_buckets
from pamp_pipelines.conversion.export_buckets import ExportBucket, begin_files, export_buckets
from pamp_pipelines.conversion.export_plan import ExportPlan
from pamp_pipelines.conversion.exporter import plan_of
from pamp_pipelines.conversion.gather import GatheredBucket, gather_bucket
from pamp_pipelines.conversion.hf_source import INDEX
from pamp_pipelines.conversion.importer import CHECKPOINT
from pamp_pipelines.conversion.job import ExportJob
from pamp_pipelines.conversion.model_card import write_model_card
from pamp_pipelines.conversion.output_config import complete_tokenizer, write_output_config
from pamp_pipelines.conversion.plan import workers_within
from pamp_pipelines.conversion.processes import run_buckets
from pamp_pipelines.conversion.progress import Progress
from pamp_pipelines.conversion.stage import Result
from pamp_pipelines.conversion.template import copy_template, has_tokenizer
from pamp_pipelines.conversion.tensor_manifest import manifest_verdict
from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.atomic import write_bytes
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.lake.manifest import CheckResult


def run_export(job: ExportJob, target: Path, events: EventLog) -> Result:
    """Writes a Hugging Face directory into `target`, which exists and is empty.

    Raises:
        InputError: the checkpoint is damaged, does not fit the template, or holds values beyond the asked dtype.
        VerificationFailed: chunks do not cover a tensor.
    """
    layout, _, plan = plan_of(job)
    events.write(
        "started", stage="export", name=job.name, total_bytes=plan.weight_bytes, parameters=layout.parameters()
    )
    warnings = copy_template(job.template, target)
    write_output_config(job.template, target, layout, plan.dtypes)
    notes = complete_tokenizer(target, layout.config)
    started = time.monotonic()
    recorded = _recorded_tensors(job)
    gathered = _write_weights(job, plan, target, Progress(events, "export", plan.weight_bytes))
    found = sum((part.non_finite for part in gathered), Counter[str]())
    seconds = time.monotonic() - started
    if found:
        warnings.append(f"{job.checkpoint}: infinities or NaNs in {', '.join(found)}")
    stats = {
        "architecture": layout.architecture.name,
        "parameters": layout.parameters(),
        "layers": layout.dimensions["L"],
        "vocab_size": layout.dimensions["V"],
        "padding_rows": plan.padding_rows,
        "dtypes": [dtype.name for dtype in plan.dtypes],
        "tensors": len(plan.items),
        "skipped_tensors": plan.skipped,
        "files": len(plan.files),
        "bytes": plan.weight_bytes,
        "seconds": round(seconds, 3),
        "gigabytes_per_second": round(plan.weight_bytes / 1e9 / max(seconds, 1e-6), 3),
        "tokenizer_notes": notes,
    }
    warnings += write_model_card(job, stats, target)
    checks = [
        CheckResult(
            name="coverage",
            passed=True,  # plan_of and gather raise where it does not hold
            description=f"all {len(plan.items)} tensors of the architecture, each element from exactly one chunk",
            metadata={"skipped_tensors": plan.skipped, "padding_rows": plan.padding_rows},
        ),
        CheckResult(
            name="finite_weights",
            passed=not found,
            severity="WARN",
            description=f"infinities or NaNs in {', '.join(found)}" if found else "all weights are finite numbers",
            metadata=dict(found),
        ),
        CheckResult(
            name="tokenizer",
            passed=has_tokenizer(target),
            severity="WARN",
            description="; ".join(notes) or "the export holds a tokenizer",
        ),
    ]
    if recorded is not None:
        checks.append(manifest_verdict(recorded, {k: v for part in gathered for k, v in part.tensors.items()}))
    events.write("finished", stage="export", **{k: stats[k] for k in ("bytes", "seconds", "gigabytes_per_second")})
    return Result(stats=stats, checks=checks, warnings=warnings + notes)


def _recorded_tensors(job: ExportJob) -> Path | None:
    """The manifest that an export must reproduce: that of the import, where its weights leave as they came."""
    file = job.template.parent / tensor_manifest.FILE
    imported = (job.template.parent / CHECKPOINT).resolve()
    same = job.checkpoint.resolve().parent == imported and job.dtype is None
    return file if same and file.is_file() else None


def _write_weights(job: ExportJob, plan: ExportPlan, target: Path, progress: Progress) -> list[GatheredBucket]:
    """Writes the files beside the output, where an export that is killed leaves them to the next, then moves them."""
    folder = buckets_dir(job)
    sweep_buckets(job, keep=folder)
    folder.mkdir(exist_ok=True)
    begin_files(plan, folder)
    processes = workers_within(job.memory_bytes, job.workers, plan.weight_bytes)
    buckets = list(planned_buckets(job, plan, folder))
    try:
        found = run_buckets(gather_bucket, buckets, processes, progress)
    except (InputError, VerificationFailed):
        shutil.rmtree(folder)  # the next export would end in the same way
        raise
    for file in plan.files:
        (folder / file.name).rename(target / file.name)
    shutil.rmtree(folder)
    if (index := plan.index()) is not None:
        write_bytes(target / INDEX, index)
    return found


def planned_buckets(job: ExportJob, plan: ExportPlan, folder: Path) -> Iterator[ExportBucket]:
    """The buckets of an export, in the same order for everybody who plans it."""
    return export_buckets(job.checkpoint, plan, folder, hashed=_recorded_tensors(job) is not None)
