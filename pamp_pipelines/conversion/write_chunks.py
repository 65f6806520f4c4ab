"""Writing one bucket of an import: byte ranges of safetensors files become payloads of one `.distcp` file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pamp_pipelines.conversion import fp8
from pamp_pipelines.conversion.bits import non_finite
from pamp_pipelines.conversion.dequantise import dequantise
from pamp_pipelines.conversion.payload import write_tensor
from pamp_pipelines.conversion.plan import COPY_BYTES, ChunkItem, Piece
from pamp_pipelines.conversion.processes import Report
from pamp_pipelines.conversion.torch_dist import StoredChunk
from pamp_pipelines.errors import InputError

_WIDEST = 8
"""Bytes per element that dequantising takes at once, so that it stays within the memory of a copy."""


@dataclass(frozen=True)
class ImportBucket:
    """The chunks that one process writes into `file`."""

    file: Path
    chunks: tuple[ChunkItem, ...]


@dataclass(frozen=True)
class WrittenBucket:
    """stored: where each chunk lies now, by checkpoint key. non_finite: infinities and NaNs found, by HF name."""

    stored: tuple[tuple[str, StoredChunk], ...]
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
    """Writes the chunks of a bucket to its file and flushes it to storage."""
    reader = _Reader(report)
    stored = []
    try:
        with bucket.file.open("xb+") as stream:
            start = 0
            for chunk in bucket.chunks:
                length = write_tensor(stream, chunk.dtype, chunk.size, reader.blocks(chunk))
                stored.append((chunk.key, StoredChunk(chunk.offset, chunk.size, bucket.file.name, start, length)))
                start += length
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        reader.close()
    return WrittenBucket(tuple(stored), reader.non_finite)
