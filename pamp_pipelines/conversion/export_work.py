"""The export itself, in the worker process: template, config.json, weights, index.

What was finished before an export was killed lies beside the output and is not written again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pamp_pipelines.conversion import tensor_manifest
from pamp_pipelines.conversion.buckets import buckets_dir, sweep_buckets
from pamp_pipelines.conversion.export_plan import ExportPlan, GatherItem, OutputFile
from pamp_pipelines.conversion.exporter import plan_of
from pamp_pipelines.conversion.gather import ExportBucket, GatheredBucket, gather_bucket
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

_BUCKET_BYTES = 128 * 2**20


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
    gathered = _write_weights(job, plan, target, Progress(events, "export", plan.weight_bytes), recorded is not None)
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


def _write_weights(
    job: ExportJob, plan: ExportPlan, target: Path, progress: Progress, hashed: bool
) -> list[GatheredBucket]:
    """Writes the files beside the output, where an export that is killed leaves them to the next, then moves them."""
    folder = buckets_dir(job)
    sweep_buckets(job, keep=folder)
    folder.mkdir(exist_ok=True)
    for file in plan.files:
        _begin(folder / file.name, file)
    processes = workers_within(job.memory_bytes, job.workers, plan.weight_bytes)
    buckets = list(_buckets(job, plan, folder, hashed))
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


def _begin(path: Path, file: OutputFile) -> None:
    """Gives a file its header and its size; one that has both keeps what an export before has written."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        if path.stat().st_size == file.bytes and stream.read(len(file.header)) == file.header:
            return
    for receipt in path.parent.glob(f"{path.name}.*.json"):
        receipt.unlink()
    with path.open("wb") as stream:
        stream.write(file.header)
        stream.truncate(file.bytes)


def _buckets(job: ExportJob, plan: ExportPlan, folder: Path, hashed: bool) -> Iterator[ExportBucket]:
    """Neighbouring tensors of a file, of at most so many bytes unless one alone has more."""
    for file in plan.files:
        groups: list[list[tuple[int, GatherItem]]] = [[]]
        size = 0
        for item, start in file.items:
            if groups[-1] and size + item.bytes > _BUCKET_BYTES:
                groups.append([])
                size = 0
            groups[-1].append((start, item))
            size += item.bytes
        for number, group in enumerate(groups):
            receipt = folder / f"{file.name}.{number}.json"
            yield ExportBucket(job.checkpoint, folder / file.name, receipt, tuple(group), hashed)
