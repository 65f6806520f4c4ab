"""Static verification of a converted checkpoint against its Hugging Face source: completeness and every bit.

Both directions use one table, so a table that is wrong cannot show here: that the weights mean the same to Megatron is
for the forward comparison (package `verification`) to say. This part proves that nothing was lost, added or altered.

Axes: R  rows of a block    C  its remaining axes
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pamp_pipelines.conversion import fp8
from pamp_pipelines.conversion.architectures.dense import fp8_blocks
from pamp_pipelines.conversion.bits import Bits
from pamp_pipelines.conversion.dequantise import dequantise
from pamp_pipelines.conversion.export_plan import ExportPlan, GatherItem, plan_export
from pamp_pipelines.conversion.gather import ChunkReader
from pamp_pipelines.conversion.hf_source import HFSource, HFTensor, read_source
from pamp_pipelines.conversion.layout import Layout, layout_of
from pamp_pipelines.conversion.plan import COPY_BYTES, plan_import
from pamp_pipelines.conversion.processes import Report, run_buckets
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, checkpoint_dir, read_checkpoint
from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.manifest import CheckResult

_LISTED = 20


@dataclass(frozen=True)
class Difference:
    """A tensor of the checkpoint that is not the source's: how many elements differ, and the first of them."""

    tensor: str
    elements: int
    first: tuple[int, ...]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.tensor}: {self.reason or f'{self.elements} elements differ, the first at {list(self.first)}'}"


@dataclass(frozen=True)
class CompareBucket:
    """Tensors that one process compares."""

    checkpoint: Path
    items: tuple[tuple[GatherItem, HFTensor, fp8.Scale | None], ...]


def verify_checkpoint_files(
    source: Path, checkpoint: Path, *, workers: int = 1, on_event: OnEvent = ignore
) -> list[CheckResult]:
    """Verdict on a checkpoint: `source_complete`, `checkpoint_complete`, `bit_exact_round_trip`.

    A check whose ground is missing fails instead of being left out, so the list always holds all three.

    Args:
        source: the Hugging Face directory.
        checkpoint: directory with `.metadata`, with a tracker file, or an import's artifact.

    Raises:
        InputError: there is no checkpoint or no readable source at all, or the architecture is not supported.
    """
    stored = read_checkpoint(checkpoint_dir(checkpoint))
    hf = read_source(source)
    layout = layout_of(hf.config)
    complete = _source_complete(layout, hf)
    plan, whole = _checkpoint_complete(layout, stored)
    if plan is None or not complete.passed:
        skipped = CheckResult(name="bit_exact_round_trip", passed=False, description="not compared: incomplete")
        return [complete, whole, skipped]
    return [complete, whole, _round_trip(hf, stored, plan, workers, on_event)]


def _source_complete(layout: Layout, hf: HFSource) -> CheckResult:
    name = "source_complete"
    try:
        plan_import(layout, hf)
    except PampError as error:
        return CheckResult(name=name, passed=False, description=str(error))
    count = len(hf.tensors)
    return CheckResult(name=name, passed=True, description=f"each of {count} HF tensors has exactly one place")


def _checkpoint_complete(layout: Layout, stored: StoredCheckpoint) -> tuple[ExportPlan | None, CheckResult]:
    name = "checkpoint_complete"
    try:
        plan = plan_export(layout, stored, None, 2**62)
    except InputError as error:
        return None, CheckResult(name=name, passed=False, description=str(error))
    description = f"{len(plan.items)} tensors, each element in exactly one chunk; nothing unknown"
    metadata = {"padding_rows": plan.padding_rows, "skipped_tensors": plan.skipped}
    return plan, CheckResult(name=name, passed=True, description=description, metadata=metadata)


def _round_trip(
    hf: HFSource, stored: StoredCheckpoint, plan: ExportPlan, workers: int, on_event: OnEvent
) -> CheckResult:
    block = fp8_blocks(hf.config)
    # a repeated tensor that the source leaves out was compared where it stands
    pairs = [(item, hf.tensors[item.name], _scale(hf, item, block)) for item in plan.items if item.name in hf.tensors]
    pairs.sort(key=lambda pair: -pair[0].bytes)
    buckets = [CompareBucket(stored.dir, tuple(pairs[i::workers])) for i in range(workers)]
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        on_event(event("progress", stage="verify", done_bytes=done, total_bytes=plan.weight_bytes))

    found = [d for part in run_buckets(compare_bucket, buckets, workers, report) for d in part]
    description = f"all {len(pairs)} tensors, {plan.weight_bytes} bytes, are equal bit for bit"
    if found:
        more = f" and {len(found) - _LISTED} more tensors" if len(found) > _LISTED else ""
        description = "; ".join(map(str, found[:_LISTED])) + more
    return CheckResult(
        name="bit_exact_round_trip",
        passed=not found,
        description=description,
        metadata={"tensors": len(pairs), "different": len(found), "bytes": plan.weight_bytes},
    )


def compare_bucket(bucket: CompareBucket, report: Report) -> list[Difference]:
    """The tensors of a bucket that are not equal."""
    reader = ChunkReader(bucket.checkpoint)
    try:
        return [d for pair in bucket.items if (d := _difference(reader, *pair, report))]
    finally:
        reader.close()


def _scale(hf: HFSource, item: GatherItem, block: tuple[int, int] | None) -> fp8.Scale | None:
    if hf.tensors[item.name].dtype != fp8.STORED or block is None:
        return None
    scales = hf.tensors[item.name + fp8.SCALE_SUFFIX]
    return fp8.Scale(scales.file, scales.start, scales.dtype, item.shape[1], block)


def _difference(
    reader: ChunkReader, item: GatherItem, tensor: HFTensor, scale: fp8.Scale | None, report: Report
) -> Difference | None:
    expected = fp8.TARGET.safetensors if scale else tensor.dtype
    if item.stored.safetensors != expected:
        return Difference(item.name, 0, (), f"is {item.stored.name} in the checkpoint, {tensor.dtype} in the source")
    elements = 0
    first: tuple[int, ...] = ()
    for row, ours in _blocks(reader, item):
        theirs = _source_rows(tensor, scale, row, ours)
        report(ours.nbytes)
        if ours.tobytes() != theirs.tobytes():
            places = np.argwhere(ours != theirs)
            elements += len(places)
            first = first or (row + int(places[0][0]), *map(int, places[0][1:]))
    return Difference(item.name, elements, first) if elements else None


def _blocks(reader: ChunkReader, item: GatherItem) -> Iterator[tuple[int, Bits]]:
    """(first row in the HF tensor, rows [R, C…] as the checkpoint has them)."""
    row_bytes = math.prod(item.shape[1:]) * item.stored.itemsize
    step = max(1, COPY_BYTES // row_bytes)
    for run in item.runs:
        for row in range(0, run.rows, step):
            count = min(step, run.rows - row)
            yield run.source_start + row, reader.rows(item, run.start + row, count)


def _source_rows(tensor: HFTensor, scale: fp8.Scale | None, row: int, like: Bits) -> Bits:
    """The source's rows from `row` on, dequantised where they are 8-bit floats."""
    itemsize = 1 if scale else like.itemsize
    row_bytes = math.prod(like.shape[1:]) * itemsize
    with tensor.file.open("rb") as stream:
        data = os.pread(stream.fileno(), like.shape[0] * row_bytes, tensor.start + row * row_bytes)
    if len(data) != like.shape[0] * row_bytes:
        raise InputError(f"{tensor.file}: became shorter while it was read")
    if scale:
        return dequantise(np.frombuffer(data, np.uint8).reshape(like.shape), scale, row)
    return np.frombuffer(data, like.dtype).reshape(like.shape)
