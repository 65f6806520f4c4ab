"""Static verification of a converted checkpoint against its Hugging Face source: completeness and every bit.

Both directions use one table, so a table that is wrong cannot show here: that the weights mean the same to Megatron is
for the forward comparison (package `verification`) to say. This part proves that nothing was lost, added or altered.

Axes: R  rows of a block    C  its remaining axes
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pamp_pipelines.conversion import fp8
from pamp_pipelines.conversion.architectures.dense import fp8_blocks
from pamp_pipelines.conversion.bits import Bits
from pamp_pipelines.conversion.compare import Comparison, Difference, rows_in_order
from pamp_pipelines.conversion.dequantise import dequantise
from pamp_pipelines.conversion.export_plan import ExportPlan, GatherItem, plan_export
from pamp_pipelines.conversion.gather import ChunkReader
from pamp_pipelines.conversion.hf_source import HFSource, HFTensor, read_source
from pamp_pipelines.conversion.layout import Layout, layout_of
from pamp_pipelines.conversion.plan import plan_import
from pamp_pipelines.conversion.processes import Report, run_buckets
from pamp_pipelines.conversion.progress import Progress, Told
from pamp_pipelines.conversion.tensor_manifest import TensorDigest
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, checkpoint_dir, read_checkpoint
from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import CheckResult

_LISTED = 20


@dataclass(frozen=True)
class CompareBucket:
    """Tensors that one process compares."""

    checkpoint: Path
    items: tuple[tuple[GatherItem, HFTensor, fp8.Scale | None], ...]


@dataclass(frozen=True)
class ComparedTensor:
    """One tensor of the source. digest: what the checkpoint holds; None where it is of another type."""

    name: str
    difference: Difference | None
    digest: TensorDigest | None


@dataclass(frozen=True)
class FilesVerdict:
    """checks: the three verdicts. tensors: what the checkpoint holds of the source's, as far as was compared."""

    checks: list[CheckResult]
    tensors: Mapping[str, TensorDigest]


def verify_checkpoint_files(
    source: Path, checkpoint: Path, *, workers: int = 1, on_event: OnEvent = ignore
) -> FilesVerdict:
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
        return FilesVerdict([complete, whole, skipped], {})
    compared = _compare(hf, stored, plan, workers, on_event)
    tensors = {tensor.name: tensor.digest for tensor in compared if tensor.digest is not None}
    return FilesVerdict([complete, whole, _round_trip(compared, plan)], tensors)


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


def _compare(
    hf: HFSource, stored: StoredCheckpoint, plan: ExportPlan, workers: int, on_event: OnEvent
) -> list[ComparedTensor]:
    block = fp8_blocks(hf.config)
    # a repeated tensor that the source leaves out was compared where it stands
    pairs = [(item, hf.tensors[item.name], _scale(hf, item, block)) for item in plan.items if item.name in hf.tensors]
    pairs.sort(key=lambda pair: -pair[0].bytes)
    buckets = [CompareBucket(stored.dir, tuple(pairs[i::workers])) for i in range(workers)]
    progress = Progress(Told(on_event), "verify", sum(item.bytes for item, _, _ in pairs))
    return [tensor for part in run_buckets(compare_bucket, buckets, workers, progress) for tensor in part]


def _round_trip(compared: Sequence[ComparedTensor], plan: ExportPlan) -> CheckResult:
    found = [tensor.difference for tensor in compared if tensor.difference is not None]
    description = f"all {len(compared)} tensors, {plan.weight_bytes} bytes, are equal bit for bit"
    if found:
        more = f" and {len(found) - _LISTED} more tensors" if len(found) > _LISTED else ""
        description = "; ".join(map(str, found[:_LISTED])) + more
    return CheckResult(
        name="bit_exact_round_trip",
        passed=not found,
        description=description,
        metadata={"tensors": len(compared), "different": len(found), "bytes": plan.weight_bytes},
    )


def compare_bucket(bucket: CompareBucket, report: Report) -> list[ComparedTensor]:
    """Each tensor of a bucket against the source, and what the checkpoint holds of it."""
    with contextlib.closing(ChunkReader(bucket.checkpoint)) as reader:
        return [_compare_tensor(reader, *pair, report) for pair in bucket.items]


def _scale(hf: HFSource, item: GatherItem, block: tuple[int, int] | None) -> fp8.Scale | None:
    if hf.tensors[item.name].dtype != fp8.STORED or block is None:
        return None
    scales = hf.tensors[item.name + fp8.SCALE_SUFFIX]
    return fp8.Scale(scales.file, scales.start, scales.dtype, item.shape[1], block)


def _compare_tensor(
    reader: ChunkReader, item: GatherItem, tensor: HFTensor, scale: fp8.Scale | None, report: Report
) -> ComparedTensor:
    expected = fp8.TARGET.safetensors if scale else tensor.dtype
    if item.stored.safetensors != expected:
        reason = f"is {item.stored.name} in the checkpoint, {tensor.dtype} in the source"
        report(item.bytes)
        return ComparedTensor(item.name, Difference(item.name, 0, (), reason), None)
    comparison, digest = Comparison(item.name), hashlib.sha256()
    for row, ours in rows_in_order(reader, item):
        comparison.add(row, ours, _source_rows(tensor, scale, row, ours))
        digest.update(ours.data)
        report(ours.nbytes)
    found = TensorDigest(dtype=expected, shape=item.shape, sha256=digest.hexdigest())
    return ComparedTensor(item.name, comparison.difference, found)


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
