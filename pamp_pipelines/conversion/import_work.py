"""The import itself, in the worker process: template, chunks, empty objects, index, tracker — in that order.

The index comes after everything it points to and the tracker after the index, so an import that is killed leaves
nothing that loads. Files that were finished before it was killed lie beside the output and are not written again.
"""

from __future__ import annotations

import itertools
import shutil
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pamp_pipelines.conversion.buckets import assign, buckets_dir, sweep_buckets, write_plans
from pamp_pipelines.conversion.hf_source import HFTensor
from pamp_pipelines.conversion.importer import CHECKPOINT, TEMPLATE, model_checks, plan_of
from pamp_pipelines.conversion.job import ImportJob
from pamp_pipelines.conversion.objects import write_objects
from pamp_pipelines.conversion.plan import COPY_BYTES, ImportPlan, workers_within
from pamp_pipelines.conversion.processes import run_buckets
from pamp_pipelines.conversion.progress import Progress
from pamp_pipelines.conversion.stage import Result
from pamp_pipelines.conversion.template import copy_template, has_tokenizer
from pamp_pipelines.conversion.torch_dist import (
    RELEASE,
    StoredChunk,
    StoredTensor,
    write_index,
    write_tracker,
)
from pamp_pipelines.conversion.write_chunks import WrittenBucket, write_bucket
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.lake.manifest import CheckResult


def run_import(job: ImportJob, target: Path, events: EventLog) -> Result:
    """Writes `hf_template/` and `checkpoint/` below `target`.

    Raises:
        InputError: the source changed, or a tied embedding has a copy that differs.
    """
    assert job.source is not None
    plan = plan_of(job)
    layout, hf_tensors = plan.layout, len(plan.source.tensors)
    events.write("started", stage="import", name=job.name, total_bytes=plan.bytes, parameters=layout.parameters())
    warnings = copy_template(job.source, target / TEMPLATE)
    for copy, original in plan.equal:
        _require_equal(copy, original)
    progress = Progress(events, "import", plan.bytes)
    started = time.monotonic()
    found = _write_checkpoint(job, plan, target / CHECKPOINT, progress)
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
        "chunks": len(plan.sizes),
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
            description=f"each of {hf_tensors} tensors used once, each element of the checkpoint written once",
            metadata={"hf_tensors": hf_tensors, "checkpoint_tensors": len(plan.tensors)},
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


def _write_checkpoint(job: ImportJob, plan: ImportPlan, root: Path, progress: Progress) -> Counter[str]:
    """Returns how many elements of which HF tensor are not finite."""
    directory = root / RELEASE
    directory.mkdir(parents=True)
    folder = buckets_dir(job)
    sweep_buckets(job, keep=folder)
    folder.mkdir(exist_ok=True)
    numbers = assign(plan.sizes)
    buckets = write_plans(plan, numbers, folder)
    written = run_buckets(write_bucket, buckets, workers_within(job.memory_bytes, job.workers, plan.bytes), progress)
    for file in (bucket.file for bucket in buckets):
        file.rename(directory / file.name)
    shutil.rmtree(folder)
    objects = write_objects(directory / f"__{len(buckets)}_0.distcp", plan.layout.extra_states())
    write_index(directory, Stored(plan, numbers, [bucket.file.name for bucket in buckets], written), objects)
    write_tracker(root)
    return sum((bucket.non_finite for bucket in written), Counter[str]())


class Stored:
    """The tensors of the checkpoint with the places of their chunks, one at a time, as often as they are asked for."""

    def __init__(
        self, plan: ImportPlan, numbers: Sequence[int], files: list[str], written: Sequence[WrittenBucket]
    ) -> None:
        self._plan, self._numbers, self._files = plan, numbers, files
        self._starts, self._lengths = (array("Q", bytes(8 * len(numbers))) for _ in range(2))
        for bucket in written:
            for number, start, length in zip(bucket.numbers, bucket.starts, bucket.lengths, strict=True):
                self._starts[number], self._lengths[number] = start, length

    def __iter__(self) -> Iterator[StoredTensor]:
        tensors = {tensor.key: tensor for tensor in self._plan.tensors}
        places = zip(self._numbers, self._starts, self._lengths, self._plan.chunks(), strict=True)
        for key, group in itertools.groupby(places, lambda place: place[3].key):
            chunks = tuple(
                StoredChunk(chunk.offset, chunk.size, self._files[bucket], start, length)
                for bucket, start, length, chunk in group
            )
            yield StoredTensor(key, tensors[key].dtype, tensors[key].shape, chunks)


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
