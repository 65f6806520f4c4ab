"""Writing one bucket of an import: byte ranges of safetensors files become payloads of one `.distcp` file."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pamp_pipelines.conversion import fp8
from pamp_pipelines.conversion.bits import non_finite
from pamp_pipelines.conversion.buckets import ImportBucket, read_plan
from pamp_pipelines.conversion.checksums import damage
from pamp_pipelines.conversion.dequantise import dequantise
from pamp_pipelines.conversion.payload import write_tensor
from pamp_pipelines.conversion.plan import COPY_BYTES, ChunkItem, Piece
from pamp_pipelines.conversion.processes import Report
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_json

_WIDEST = 8
"""Bytes per element that dequantising takes at once, so that it stays within the memory of a copy."""


@dataclass(frozen=True)
class WrittenBucket:
    """Where the chunks of a bucket lie now. numbers: theirs in the plan. starts, lengths: bytes of the file.

    non_finite: infinities and NaNs found, by HF name.
    """

    numbers: array[int]
    starts: array[int]
    lengths: array[int]
    non_finite: Counter[str]


@dataclass
class _Reader:
    """Copies byte ranges through one buffer; keeps files open, since a bucket reads few files many times."""

    report: Report
    non_finite: Counter[str] = field(default_factory=Counter)
    _buffer: bytearray = field(default_factory=lambda: bytearray(COPY_BYTES))
    _files: dict[Path, int] = field(default_factory=dict)

    def blocks(self, chunk: ChunkItem) -> Iterator[memoryview]:
        """The chunk's bytes in order. A block is valid until the next one is asked for."""
        view = memoryview(self._buffer)
        for piece in chunk.pieces:
            if piece.scale is not None:
                yield from self._dequantised(piece, piece.scale)
                continue
            done = 0
            while done < piece.bytes:
                part = view[: min(len(view), piece.bytes - done)]
                self._fill(part, piece.file, piece.start + done)
                bits = np.frombuffer(part, chunk.dtype.carrier)
                if count := non_finite(bits, chunk.dtype):
                    self.non_finite[piece.tensor] += count
                yield part
                done += len(part)
                self.report(len(part))

    def _dequantised(self, piece: Piece, scale: fp8.Scale) -> Iterator[memoryview]:
        rows = piece.bytes // scale.columns
        step = max(1, len(self._buffer) // (_WIDEST * scale.columns))
        for row in range(0, rows, step):
            part = memoryview(self._buffer)[: min(step, rows - row) * scale.columns]
            self._fill(part, piece.file, piece.start + row * scale.columns)
            bits = dequantise(np.frombuffer(part, np.uint8).reshape(-1, scale.columns), scale, piece.row + row)
            if count := non_finite(bits, fp8.TARGET):
                self.non_finite[piece.tensor] += count
            yield memoryview(np.ascontiguousarray(bits)).cast("B")
            self.report(bits.nbytes)

    def _fill(self, part: memoryview, file: Path, start: int) -> None:
        if file not in self._files:
            self._files[file] = os.open(file, os.O_RDONLY)
        filled = 0
        while filled < len(part):
            count = os.preadv(self._files[file], [part[filled:]], start + filled)
            if not count:
                raise InputError(f"{file}: became shorter while it was read; it ends before byte {start + len(part)}")
            filled += count

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)


def write_bucket(bucket: ImportBucket, report: Report) -> WrittenBucket:
    """Writes the chunks of a bucket to its file and flushes it to storage; then a receipt, beside the file.

    A file whose receipt is there, from an import that was killed later, is left as it is.
    """
    planned = read_plan(bucket.plan)
    numbers = array("Q", (number for number, _ in planned))
    chunks = [chunk for _, chunk in planned]
    receipt = bucket.file.with_suffix(".json")
    if (found := _finished(bucket.file, numbers, chunks, receipt)) is not None:
        report(bucket.bytes)
        return found
    receipt.unlink(missing_ok=True)
    bucket.file.unlink(missing_ok=True)
    reader = _Reader(report)
    starts, lengths = array("Q"), array("Q")
    end = 0
    try:
        with bucket.file.open("xb+") as stream:
            for chunk in chunks:
                starts.append(end)
                lengths.append(write_tensor(stream, chunk.dtype, chunk.size, reader.blocks(chunk)))
                end += lengths[-1]
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        reader.close()
    places = list(zip(starts, lengths, strict=True))
    content = {"bytes": end, "chunks": _digest(chunks), "places": places, "non_finite": dict(reader.non_finite)}
    write_json(receipt, content)
    return WrittenBucket(numbers, starts, lengths, reader.non_finite)


def _finished(file: Path, numbers: array[int], chunks: list[ChunkItem], receipt: Path) -> WrittenBucket | None:
    """What a receipt says, where it is that of these chunks and the file's bytes are those that were written."""
    try:
        found = json.loads(receipt.read_text())
        if found["chunks"] != _digest(chunks) or found["bytes"] != file.stat().st_size:
            return None
        starts, lengths = (array("Q", values) for values in zip(*found["places"], strict=True))
        if damage(file, zip(starts, lengths, strict=True)):
            return None
        return WrittenBucket(numbers, starts, lengths, Counter(found["non_finite"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent, or cut short with the import that wrote it


def _digest(chunks: list[ChunkItem]) -> str:
    """Tells plans apart: a newer version of this package may cut or order the same model otherwise."""
    hashed = hashlib.sha256()
    for chunk in chunks:
        pieces = [(piece.tensor, piece.start, piece.bytes, piece.scale is not None) for piece in chunk.pieces]
        hashed.update(repr((chunk.key, chunk.offset, chunk.size, chunk.dtype.name, pieces)).encode())
    return hashed.hexdigest()
