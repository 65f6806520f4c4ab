"""What a checkpoint says, whatever wrote it: one hash for each tensor, over its elements in row-major order.

The files of two equal checkpoints differ: objects beside the tensors hold Megatron's arguments with absolute paths and
the state of one process' random numbers, and another parallel layout cuts the tensors at other places.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pamp_pipelines.conversion.coverage import Shape
from pamp_pipelines.conversion.dtypes import DType
from pamp_pipelines.conversion.gather import ChunkReader
from pamp_pipelines.conversion.plan import COPY_BYTES
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, StoredChunk, StoredTensor
from pamp_pipelines.errors import VerificationFailed
from pamp_pipelines.lake.hashing import sha256_json

_THREADS = 8


def tensors_hash(checkpoint: StoredCheckpoint, iteration: int) -> str:
    """Hex SHA-256 over the iteration and every tensor, weights and optimizer state: key, type, shape and elements.

    Equal for equal values at any parallel layout. Objects (arguments, random numbers, counters) do not count.

    Raises:
        InputError: a payload is damaged or is not of the shape or type that the index says.
        VerificationFailed: the chunks of a tensor do not cover it.
    """
    tensors = [checkpoint.tensors[key] for key in sorted(checkpoint.tensors)]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(lambda tensor: _tensor_hash(checkpoint, tensor), tensors))
    described = [
        [tensor.key, tensor.dtype.name if tensor.dtype else None, tensor.shape, digest]
        for tensor, digest in zip(tensors, digests, strict=True)
    ]
    return sha256_json({"iteration": iteration, "tensors": described})


def _tensor_hash(checkpoint: StoredCheckpoint, tensor: StoredTensor) -> str:
    digest = hashlib.sha256()
    if tensor.dtype is None:
        # of a type that has no name here: its payloads as they are, which depends on the layout but on nothing else
        for chunk in sorted(tensor.chunks, key=lambda chunk: chunk.offset):
            with (checkpoint.dir / chunk.file).open("rb") as stream:
                stream.seek(chunk.start)
                digest.update(stream.read(chunk.length))
        return digest.hexdigest()
    with contextlib.closing(ChunkReader(checkpoint.dir)) as reader:
        start = (0,) * len(tensor.shape)
        for offset, size, chunks in _boxes(start, tensor.shape, tensor.chunks, COPY_BYTES // tensor.dtype.itemsize):
            digest.update(_box(reader, tensor.key, tensor.dtype, offset, size, chunks))
    return digest.hexdigest()


def _boxes(
    offset: Shape, size: Shape, chunks: Sequence[StoredChunk], elements: int
) -> Iterator[tuple[Shape, Shape, Sequence[StoredChunk]]]:
    """Boxes of at most ``elements`` that follow each other in row-major order, each with the chunks that reach into it.

    A box is halved along its first axis that is longer than 1: all before it are of one index, so the order is kept.
    """
    reaching = [chunk for chunk in chunks if _overlap(offset, size, chunk) is not None]
    if math.prod(size) <= elements:
        yield offset, size, reaching
        return
    axis = next(axis for axis, length in enumerate(size) if length > 1)
    half = size[axis] // 2
    for start, length in ((0, half), (half, size[axis] - half)):
        yield from _boxes(
            (*offset[:axis], offset[axis] + start, *offset[axis + 1 :]),
            (*size[:axis], length, *size[axis + 1 :]),
            reaching,
            elements,
        )


def _overlap(offset: Shape, size: Shape, chunk: StoredChunk) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where a box and a chunk overlap, as indices into the box and into the chunk; None where they do not."""
    in_box, in_chunk = [], []
    for at, length, chunk_at, chunk_length in zip(offset, size, chunk.offset, chunk.size, strict=True):
        low, high = max(at, chunk_at), min(at + length, chunk_at + chunk_length)
        if low >= high:
            return None
        in_box.append(slice(low - at, high - at))
        in_chunk.append(slice(low - chunk_at, high - chunk_at))
    return tuple(in_box), tuple(in_chunk)


def _box(
    reader: ChunkReader, key: str, dtype: DType, offset: Shape, size: Shape, chunks: Sequence[StoredChunk]
) -> np.ndarray:
    """The elements of a box as a contiguous array of raw bits; mapped, not copied, where one chunk holds them so."""
    out = None
    filled = 0
    for chunk in chunks:
        overlap = _overlap(offset, size, chunk)
        assert overlap is not None
        part = reader.array(chunk, dtype)[overlap[1]]
        filled += part.size
        if part.size == math.prod(size):
            out = np.ascontiguousarray(part)
            continue
        if out is None:
            out = np.empty(size, dtype.carrier)
        out[overlap[0]] = part
    if filled != math.prod(size):
        raise VerificationFailed(f"{reader.directory}: chunks hold {filled} of {math.prod(size)} elements of {key}")
    return np.empty(0, dtype.carrier) if out is None else out
