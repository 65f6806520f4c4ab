"""The import itself, in the worker process: template, chunks, empty objects, index, tracker — in that order.

The index comes after everything it points to and the tracker after the index, so an import that is killed leaves
nothing that loads. Files that were finished before it was killed lie beside the output and are not written again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.hf_source import HFTensor
from pamp_pipelines.conversion.importer import CHECKPOINT, TEMPLATE, model_checks, plan_of
from pamp_pipelines.conversion.job import ImportJob
from pamp_pipelines.conversion.layout import Layout
from pamp_pipelines.conversion.payload import EMPTY, write_object
from pamp_pipelines.conversion.plan import COPY_BYTES, ImportPlan, workers_within
from pamp_pipelines.conversion.processes import run_buckets
from pamp_pipelines.conversion.progress import Progress
from pamp_pipelines.conversion.stage import Result
from pamp_pipelines.conversion.template import copy_template, has_tokenizer
from pamp_pipelines.conversion.torch_dist import (
    RELEASE,
    StoredChunk,
    StoredObject,
    StoredTensor,
    write_index,
    write_tracker,
)
from pamp_pipelines.conversion.write_chunks import ImportBucket, buckets_dir, sweep_buckets, write_bucket
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.lake.manifest import CheckResult

_COMMON: dict[str, Any] = {
    "checkpoint_version": 3.0,
    "iteration": 0,
    # what the loader needs to name its keys like this file's (megatron-core 0.19.2, dist_checkpointing/utils.py)
    "content_metadata": {"singleton_local_shards": False, "chained_optim_avoid_prefix": True},
}
"""Megatron's common state: an object of the checkpoint since 0.19. Without `args`: config.json decides the model."""


def run_import(job: ImportJob, target: Path, events: EventLog) -> Result:
    """Writes `hf_template/` and `checkpoint/` below `target`.

    Raises:
        InputError: the source changed, or a tied embedding has a copy that differs.
    """
    assert job.source is not None
    layout, source, plan = plan_of(job)
    events.write("started", stage="import", name=job.name, total_bytes=plan.bytes, parameters=layout.parameters())
    warnings = copy_template(job.source, target / TEMPLATE)
    for copy, original in plan.equal:
        _require_equal(copy, original)
    progress = Progress(events, "import", plan.bytes)
    started = time.monotonic()
    found = _write_checkpoint(job, layout, plan, target / CHECKPOINT, progress)
    seconds = time.monotonic() - started
    if layout.dimensions.get("P") and not layout.prediction:
        warnings.append(
            f"{job.source}: config.json declares multi-token prediction, the weights have none; the import neither"
        )
    if found:
        warnings.append(f"{job.source}: infinities or NaNs in {_listed(found)}")
    stats = {
        "architecture": layout.architecture.name,
        "parameters": layout.parameters(),
        "layers": layout.dimensions["L"],
        "vocab_size": layout.dimensions["V"],
        "dtypes": sorted({tensor.dtype.name for tensor in plan.tensors}),
        "tensors": len(plan.tensors),
        "chunks": len(plan.chunks),
        "bytes": plan.bytes,
        "seconds": round(seconds, 3),
        "gigabytes_per_second": round(plan.bytes / 1e9 / max(seconds, 1e-6), 3),
        "ignored": list(plan.ignored),
        "dequantised": len(plan.scales),
        "prediction_layers": len(layout.predict_layers),
        "from_scratch": False,
    }
    checks = [
        CheckResult(
            name="coverage",
            passed=True,  # plan_of raises where it does not hold
            description=f"each of {len(source.tensors)} tensors used once, each element of the checkpoint written once",
            metadata={"hf_tensors": len(source.tensors), "checkpoint_tensors": len(plan.tensors)},
        ),
        CheckResult(
            name="finite_weights",
            passed=not found,
            severity="WARN",
            description=f"infinities or NaNs in {_listed(found)}" if found else "all weights are finite numbers",
            metadata=dict(found),
        ),
        CheckResult(
            name="tokenizer",
            passed=has_tokenizer(target / TEMPLATE),
            severity="WARN",
            description="the template holds a tokenizer",
        ),
        *model_checks(layout),
    ]
    events.write("finished", stage="import", **{k: stats[k] for k in ("bytes", "seconds", "gigabytes_per_second")})
    return Result(stats=stats, checks=checks, warnings=warnings)


def _write_checkpoint(job: ImportJob, layout: Layout, plan: ImportPlan, root: Path, progress: Progress) -> Counter[str]:
    """Returns how many elements of which HF tensor are not finite."""
    directory = root / RELEASE
    directory.mkdir(parents=True)
    folder = buckets_dir(job)
    sweep_buckets(job, keep=folder)
    folder.mkdir(exist_ok=True)
    buckets = [ImportBucket(folder / f"__{i}_0.distcp", tuple(chunks)) for i, chunks in enumerate(plan.buckets())]
    written = run_buckets(write_bucket, buckets, workers_within(job.memory_bytes, job.workers, plan.bytes), progress)
    for file in (bucket.file for bucket in buckets):
        file.rename(directory / file.name)
    shutil.rmtree(folder)
    stored: dict[str, list[StoredChunk]] = defaultdict(list)
    for bucket in written:
        for key, chunk in bucket.stored:
            stored[key].append(chunk)
    tensors = [
        StoredTensor(t.key, t.dtype, t.shape, tuple(sorted(stored[t.key], key=lambda c: c.offset)))
        for t in plan.tensors
    ]
    write_index(directory, tensors, _write_objects(directory / f"__{len(buckets)}_0.distcp", plan))
    write_tracker(root)
    return sum((bucket.non_finite for bucket in written), Counter[str]())


def _write_objects(file: Path, plan: ImportPlan) -> list[StoredObject]:
    """The common state, and an empty `_extra_state` for every module that any layer specification asks for.

    Keys that a model does not ask for are free; one that is missing makes Megatron refuse the checkpoint. All of them
    share one payload: a model with thousands of experts asks for tens of thousands.
    """
    with file.open("xb+") as stream:
        common = write_object(stream, [_COMMON])
        empty = write_object(stream, [EMPTY])
        stream.flush()
        os.fsync(stream.fileno())
    objects = [StoredObject("common_state/shard_0_1", file.name, 0, common)]
    return objects + [StoredObject(key, file.name, common, empty) for key in plan.extra_states]


def _require_equal(copy: HFTensor, original: HFTensor) -> None:
    """A model that ties its embeddings may still carry the output layer: it must then be the same."""
    same = copy.dtype == original.dtype and copy.shape == original.shape
    with copy.file.open("rb") as first, original.file.open("rb") as second:
        first.seek(copy.start)
        second.seek(original.start)
        left = copy.bytes
        while same and left:
            count = min(left, COPY_BYTES)
            same = first.read(count) == second.read(count)
            left -= count
    if not same:
        raise InputError(
            f"{copy.file}: config.json ties the embeddings, but {copy.name} differs from {original.name}; "
            "set tie_word_embeddings to false or remove the tensor"
        )


def _listed(found: Counter[str]) -> str:
    names = [f"{name} ({count})" for name, count in found.most_common(5)]
    return ", ".join(names) + (f" and {len(found) - 5} more tensors" if len(found) > 5 else "")
