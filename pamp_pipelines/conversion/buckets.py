"""An import's chunks in buckets, one for each file of the checkpoint, and the files that tell a process its own.

A bucket's plan is a file of one JSON list a line. Only the process that writes the bucket reads it, so that nobody
ever holds the plan of a large model whole.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import shutil
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion import fp8
from pamp_pipelines.conversion.dtypes import by_name
from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.conversion.plan import ChunkItem, ImportPlan, Piece
from pamp_pipelines.lake.publish import siblings

_BUCKET_BYTES = 128 * 2**20
_MAX_BUCKETS = 256


@dataclass(frozen=True)
class ImportBucket:
    """Chunks that one process writes into `file`; `plan` says which, `bytes` how much they are."""

    file: Path
    plan: Path
    bytes: int


def buckets_dir(job: ImportJob | ExportJob) -> Path:
    """Where finished parts of a conversion wait for the others. Its name holds the id, which covers every input."""
    return job.output.parent / f".{job.output.name}.{job.id[:16]}.buckets"


def sweep_buckets(job: ImportJob | ExportJob, keep: Path) -> None:
    """Removes what unfinished conversions of other inputs into the same output left."""
    for folder in siblings(job.output, "buckets"):
        if folder != keep:
            shutil.rmtree(folder)


def bucket_count(sizes: Sequence[int]) -> int:
    """How many buckets chunks of these bytes make.

    The number follows from the sizes alone, so that the same model gives the same files on every machine.
    """
    return min(_MAX_BUCKETS, len(sizes), max(1, math.ceil(sum(sizes) / _BUCKET_BYTES)))


def assign(sizes: Sequence[int]) -> array[int]:
    """The bucket of each chunk, of which `sizes` are the bytes: the largest first, each to where least is so far."""
    buckets = array("H", bytes(2 * len(sizes)))
    loads = [(0, bucket) for bucket in range(bucket_count(sizes))]
    for number in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        load, bucket = loads[0]
        buckets[number] = bucket
        heapq.heapreplace(loads, (load + sizes[number], bucket))
    return buckets


def write_plans(plan: ImportPlan, numbers: Sequence[int], folder: Path) -> list[ImportBucket]:
    """Writes the plan of every bucket into `folder`, where the buckets themselves go.

    numbers: the bucket of each chunk.
    """
    count = bucket_count(plan.sizes)
    files = [folder / f"__{bucket}_0.distcp" for bucket in range(count)]
    totals = [0] * count
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(file.with_suffix(".plan").open("w", encoding="utf-8")) for file in files]
        for number, (bucket, chunk) in enumerate(zip(numbers, plan.chunks(), strict=True)):
            streams[bucket].write(json.dumps([number, *_plain(chunk)]) + "\n")
            totals[bucket] += chunk.bytes
    return [ImportBucket(file, file.with_suffix(".plan"), total) for file, total in zip(files, totals, strict=True)]


def read_plan(file: Path) -> list[tuple[int, ChunkItem]]:
    """The chunks of a bucket and their numbers in the plan, in the order in which their source files hold them."""
    with file.open(encoding="utf-8") as stream:
        found = [(number, _chunk(*rest)) for number, *rest in map(json.loads, stream)]
    return sorted(found, key=lambda pair: (pair[1].pieces[0].file, pair[1].pieces[0].start))


def _plain(chunk: ChunkItem) -> list[Any]:
    pieces = [
        [piece.tensor, str(piece.file), piece.start, piece.bytes, piece.row, piece.scale and _plain_scale(piece.scale)]
        for piece in chunk.pieces
    ]
    return [chunk.key, chunk.offset, chunk.size, chunk.dtype.name, pieces]


def _plain_scale(scale: fp8.Scale) -> list[Any]:
    return [str(scale.file), scale.start, scale.dtype, scale.columns, scale.block]


def _chunk(key: str, offset: list[int], size: list[int], dtype: str, pieces: list[list[Any]]) -> ChunkItem:
    return ChunkItem(key, tuple(offset), tuple(size), by_name(dtype), tuple(_piece(*piece) for piece in pieces))


def _piece(tensor: str, file: str, start: int, count: int, row: int, scale: list[Any] | None) -> Piece:
    return Piece(tensor, Path(file), start, count, row, _scale(*scale) if scale else None)


def _scale(file: str, start: int, dtype: str, columns: int, block: list[int]) -> fp8.Scale:
    rows, width = block
    return fp8.Scale(Path(file), start, dtype, columns, (rows, width))
