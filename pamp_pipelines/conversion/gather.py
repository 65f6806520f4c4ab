"""Writing one bucket of an export: parts of `.distcp` payloads become tensors at their place in safetensors files.

Axes: R  rows of a block    C  its remaining axes (none for a vector, columns for a matrix)
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic import BaseModel

from pamp_pipelines.conversion.bits import Bits, convert, non_finite
from pamp_pipelines.conversion.checksums import damage, file_crc
from pamp_pipelines.conversion.dtypes import DType
from pamp_pipelines.conversion.export_buckets import ExportBucket
from pamp_pipelines.conversion.export_plan import GatherItem
from pamp_pipelines.conversion.payload import StoredArray, read_array
from pamp_pipelines.conversion.plan import COPY_BYTES
from pamp_pipelines.conversion.processes import Report
from pamp_pipelines.conversion.tensor_manifest import TensorDigest
from pamp_pipelines.conversion.torch_dist import StoredChunk
from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.atomic import write_text

_REMEMBERED = 4096
"""Payloads whose places a reader remembers: those of a block are asked for several times, one after the other."""


class GatheredBucket(BaseModel):
    """non_finite: infinities and NaNs, by tensor. tensors: what was written, where hashes were asked for."""

    non_finite: Counter[str] = Counter()
    tensors: dict[str, TensorDigest] = {}


class _Receipt(BaseModel):
    """written: SHA-256 of what the bucket is: a newer version of this package may cut the same model otherwise.

    crc: CRC-32 of the bytes that were written.
    """

    written: str
    crc: int
    found: GatheredBucket


@dataclass
class ChunkReader:
    """Chunks of a checkpoint directory as arrays that are mapped, not read."""

    directory: Path
    _maps: dict[str, np.memmap] = field(default_factory=dict)
    _streams: dict[str, IO[bytes]] = field(default_factory=dict)
    _arrays: dict[tuple[str, int], tuple[StoredArray, Bits]] = field(default_factory=dict)
    _buffer: bytearray = field(default_factory=bytearray)

    def rows(self, item: GatherItem, start: int, rows: int) -> Bits:
        """Rows [start, start + rows) of the item's block: array [R, C…] of raw bits, valid until the next call.

        Raises:
            InputError: a payload is damaged or is not of the shape or type that the index says.
            VerificationFailed: the chunks do not cover these rows exactly once.
        """
        out = self._room(item, rows)
        filled = 0
        for chunk in item.chunks:
            extra = len(chunk.size) - len(item.shape)  # the axes of layers and experts
            offset, size = chunk.offset[extra:], chunk.size[extra:]
            low, high = max(start, offset[0]), min(start + rows, offset[0] + size[0])
            if low >= high:
                continue
            stored = self.array(chunk, item.stored)
            index = tuple(-o for o in chunk.offset[:extra])
            part = out[low - start : high - start]
            if size[1:] == item.shape[1:] and self._arrays[chunk.file, chunk.start][0].contiguous:
                self._read(part, chunk, (*index, low - offset[0]))
                filled += part.size
                continue
            columns = tuple(slice(o, o + s) for o, s in zip(offset[1:], size[1:], strict=True))
            taken = stored[index][low - offset[0] : high - offset[0]]
            part[(slice(None), *columns)] = taken
            filled += taken.size
        if filled != out.size:
            raise VerificationFailed(f"{self.directory}: chunks hold {filled} of {out.size} elements of {item.name}")
        return out

    def _room(self, item: GatherItem, rows: int) -> Bits:
        """The one buffer: fresh memory for each block would cost more than the copy, in page faults."""
        elements = rows * math.prod(item.shape[1:])
        if len(self._buffer) < elements * item.stored.itemsize:
            self._buffer = bytearray(elements * item.stored.itemsize)
        return np.frombuffer(self._buffer, item.stored.carrier, elements).reshape(rows, *item.shape[1:])

    def _read(self, part: Bits, chunk: StoredChunk, index: tuple[int, ...]) -> None:
        """Whole rows of a contiguous chunk from `index` on: read, since mapping a page costs more than copying it."""
        row = 0
        for i, length in zip(index, chunk.size, strict=False):
            row = row * length + i
        row_bytes = math.prod(chunk.size[len(index) :]) * part.itemsize
        position = self._arrays[chunk.file, chunk.start][0].start + row * row_bytes
        view = memoryview(part.reshape(-1)).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self._streams[chunk.file].fileno(), [view[done:]], position + done)
            if not count:
                raise InputError(f"{self.directory / chunk.file}: became shorter while it was read")
            done += count

    def array(self, chunk: StoredChunk, dtype: DType) -> Bits:
        """The raw bits of a chunk, of the chunk's size.

        Raises:
            InputError: the payload is damaged or is not of the shape or type that the index says.
        """
        key = chunk.file, chunk.start
        if key not in self._arrays:
            if len(self._arrays) >= _REMEMBERED:
                self._arrays.clear()
            file = self.directory / chunk.file
            if chunk.file not in self._streams:
                self._streams[chunk.file] = file.open("rb")
                self._maps[chunk.file] = np.memmap(file, np.uint8, "r")
            array = read_array(file, self._streams[chunk.file], chunk.start, chunk.length)
            if array.dtype is not dtype or _without_ones(array.shape) != _without_ones(chunk.size):
                raise InputError(
                    f"{file} at byte {chunk.start}: holds {array.dtype.name} {list(array.shape)}, "
                    f".metadata says {dtype.name} {list(chunk.size)}"
                )
            strides = tuple(step * dtype.itemsize for step in array.strides)
            view: Bits = np.ndarray(array.shape, dtype.carrier, self._maps[chunk.file], array.start, strides)
            self._arrays[key] = array, view.reshape(chunk.size)
        return self._arrays[key][1]

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._arrays.clear()
        self._maps.clear()


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Writers differ in whether a payload keeps the axes of layers and experts, of length 1 in a chunk."""
    return tuple(n for n in shape if n != 1)


def gather_bucket(bucket: ExportBucket, report: Report) -> GatheredBucket:
    """Writes the tensors of a bucket to their places and flushes them to storage; then the receipt.

    A bucket whose receipt is there, from an export that was killed later, is left as it is, if its bytes are those that
    were written.

    Raises:
        InputError: a payload is not as it was saved, or holds values beyond the range of the export's type.
        VerificationFailed: the chunks do not cover a tensor.
    """
    written = _digest(bucket)
    with contextlib.suppress(OSError, ValueError):  # absent, or cut short with the export that wrote it
        receipt = _Receipt.model_validate_json(bucket.receipt.read_bytes())
        if receipt.written == written and receipt.crc == _crc_on_disk(bucket):
            report(bucket.bytes)
            return receipt.found
    _require_undamaged(bucket)
    reader = ChunkReader(bucket.checkpoint)
    found = GatheredBucket()
    sums = _Sums()
    descriptor = os.open(bucket.file, os.O_WRONLY)
    try:
        for start, item in bucket.items:
            sums.sha256 = hashlib.sha256() if bucket.hashed else None
            if count := _write(reader, item, descriptor, start, report, sums):
                found.non_finite[item.name] = count
            if sums.sha256 is not None:
                found.tensors[item.name] = TensorDigest(
                    dtype=item.target.safetensors, shape=item.shape, sha256=sums.sha256.hexdigest()
                )
        os.fsync(descriptor)
    finally:
        reader.close()
        os.close(descriptor)
    write_text(bucket.receipt, _Receipt(written=written, crc=sums.crc, found=found).model_dump_json())
    return found


@dataclass
class _Sums:
    """Of what is written, while it is in memory anyway. crc: CRC-32 of the whole bucket. sha256: of one tensor."""

    crc: int = 0
    sha256: Any | None = None

    def update(self, data: memoryview) -> None:
        self.crc = zlib.crc32(data, self.crc)
        if self.sha256 is not None:
            self.sha256.update(data)


def _crc_on_disk(bucket: ExportBucket) -> int:
    """Of a bucket's tensors, which follow each other in their file, as they are there now."""
    with bucket.file.open("rb", buffering=0) as stream:
        return file_crc(stream, bucket.items[0][0], bucket.bytes, memoryview(bytearray(COPY_BYTES)))


def _require_undamaged(bucket: ExportBucket) -> None:
    """Reads the payloads once before their parts are taken, out of the page cache then."""
    for name, group in itertools.groupby(bucket.payloads, lambda payload: payload[0]):
        if words := damage(bucket.checkpoint / name, [(start, length) for _, start, length in group]):
            raise InputError(f"{words}; export another checkpoint, or restore this one from a copy")


def _digest(bucket: ExportBucket) -> str:
    hashed = hashlib.sha256(repr((bucket.hashed, bucket.payloads)).encode())
    for start, item in bucket.items:
        hashed.update(repr((start, item)).encode())
    return hashed.hexdigest()


def _write(reader: ChunkReader, item: GatherItem, descriptor: int, start: int, report: Report, sums: _Sums) -> int:
    """Writes one tensor from its first row to its last; returns how many elements are not finite."""
    row_elements = math.prod(item.shape[1:])
    step = max(1, COPY_BYTES // (row_elements * item.stored.itemsize))
    infinite = 0
    for run in item.runs:
        for row in range(0, run.rows, step):
            count = min(step, run.rows - row)
            bits = reader.rows(item, run.start + row, count)
            before = non_finite(bits, item.stored)
            converted = convert(bits, item.stored, item.target)
            if item.target is not item.stored and non_finite(converted, item.target) > before:
                raise InputError(f"{item.name} holds values beyond the range of {item.target.name}; use another dtype")
            infinite += before
            position = start + (run.source_start + row) * row_elements * item.target.itemsize
            data = memoryview(np.ascontiguousarray(converted)).cast("B")
            sums.update(data)
            _write_all(descriptor, data, position)
            report(converted.nbytes)
    return infinite


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], position + done)
