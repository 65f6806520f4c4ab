"""The plan of an import: which bytes of which safetensors file go into which chunk. Pure data; no weight is read.

Every operation moves whole rows (rows.py) and both formats store rows in order, so a chunk is a list of byte ranges.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pamp_pipelines.conversion import fp8
from pamp_pipelines.conversion.architectures import Op
from pamp_pipelines.conversion.architectures.dense import fp8_blocks
from pamp_pipelines.conversion.coverage import Shape, interval_problem, tiling_problem
from pamp_pipelines.conversion.dtypes import DTYPES, DType
from pamp_pipelines.conversion.hf_source import HFSource, HFTensor
from pamp_pipelines.conversion.layout import Block, Layout
from pamp_pipelines.conversion.rows import clip
from pamp_pipelines.errors import InputError, VerificationFailed

CHUNK_BYTES = 64 * 2**20
"""Largest chunk. A reader loads whole chunks, so this bounds the memory of every later load too."""

COPY_BYTES = 4 * 2**20
"""Size of the buffer through which a worker copies."""

_BUCKET_BYTES = 128 * 2**20
_MAX_BUCKETS = 256
_CHUNK_PLAN_BYTES = 3000
"""Memory of one chunk of a plan, with its share of the source's headers (2.3 kB measured for DeepSeek-V3)."""

_PROCESS_BYTES = 512 * 2**20
"""What one process moves in about the time in which two more would start."""

_LISTED = 50
_WEIGHTS = {dtype.safetensors: dtype for dtype in DTYPES}

_WORKER_BYTES = 64 * 2**20
"""A worker process with numpy and this package loaded (39 MiB measured), and room for its part of the plan."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`bytes` bytes from byte `start` of `file`: whole rows of one HF tensor, from row `row`.

    scale: where the rows are 8-bit floats, which double in size as they are dequantised.
    """

    tensor: str
    file: Path
    start: int
    bytes: int
    row: int = 0
    scale: fp8.Scale | None = None

    @property
    def written_bytes(self) -> int:
        return self.bytes if self.scale is None else self.bytes * fp8.TARGET.itemsize


@dataclass(frozen=True, slots=True)
class ChunkItem:
    """One chunk to be written: a box of the checkpoint tensor `key`, made of the pieces one after the other."""

    key: str
    offset: Shape
    size: Shape
    dtype: DType
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.size) * self.dtype.itemsize


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the checkpoint, with its global shape."""

    key: str
    shape: Shape
    dtype: DType


@dataclass(frozen=True)
class ImportPlan:
    """All that an import writes.

    layout: what the source turned out to hold.
    equal: pairs of HF tensors that must hold the same bytes (a copy of a tied embedding).
    scales: HF tensors that are the scales of another.
    ignored: HF tensors that follow from the config.
    extra_states: keys of the empty objects.
    """

    layout: Layout
    tensors: tuple[PlannedTensor, ...]
    chunks: tuple[ChunkItem, ...]
    equal: tuple[tuple[HFTensor, HFTensor], ...]
    ignored: tuple[str, ...]
    scales: tuple[str, ...]
    extra_states: tuple[str, ...]

    @cached_property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)

    def buckets(self) -> list[list[ChunkItem]]:
        """Lists of about equally many bytes, each in the order of the source files; one becomes one file.

        Their number follows from the size alone, so that the same model gives the same files on every machine.
        """
        count = min(_MAX_BUCKETS, max(1, math.ceil(self.bytes / _BUCKET_BYTES)))
        buckets: list[list[ChunkItem]] = [[] for _ in range(count)]
        loads = [(0, i) for i in range(len(buckets))]
        for chunk in sorted(self.chunks, key=lambda c: c.bytes, reverse=True):
            load, i = heapq.heappop(loads)
            buckets[i].append(chunk)
            heapq.heappush(loads, (load + chunk.bytes, i))
        filled = [b for b in buckets if b]
        for bucket in filled:
            bucket.sort(key=lambda c: (c.pieces[0].file, c.pieces[0].start))
        return filled


def peak_bytes(workers: int, chunks: int = 0) -> int:
    """Upper estimate of the anonymous memory of an import or export with that many worker processes.

    chunks: those of the plan, which the parent holds whole and the workers in parts. A tensor never is in memory, so
    the bound does not depend on the model's size, but for its plan.
    """
    return (workers + 1) * _WORKER_BYTES + workers * 4 * COPY_BYTES + 2 * chunks * _CHUNK_PLAN_BYTES


def workers_within(budget: int, wanted: int, moved: int) -> int:
    """How many processes, at most `wanted`, move `moved` bytes within a memory of `budget` bytes.

    Few bytes are moved by one: another process would take longer to start than to help.

    Raises:
        InputError: not even one does.
    """
    if peak_bytes(1) > budget:
        raise InputError(f"memory_bytes is {budget}; a conversion needs at least {peak_bytes(1)}")
    useful = min(wanted, math.ceil(moved / _PROCESS_BYTES))
    return max(n for n in range(1, max(1, useful) + 1) if peak_bytes(n) <= budget)


def plan_import(layout: Layout, source: HFSource, chunk_bytes: int = CHUNK_BYTES) -> ImportPlan:
    """Plans the import of `source`.

    Raises:
        InputError: tensors are missing, unknown, or of another shape or type than the architecture has; all at once.
        VerificationFailed: the plan does not use every byte exactly once (a wrong table).
    """
    problems: list[str] = []
    if not any(source.tensors.get(name) for b in _first_predictions(layout) for name in b.sources):
        layout = layout.without_prediction()
    copies = layout.copies()
    equal, ignored, scales = [], [], []
    expected = layout.hf_shapes()
    block = fp8_blocks(layout.config)
    for name, tensor in source.tensors.items():
        if name in expected:
            problems += _tensor_problems(tensor, expected[name], source, block)
        elif name in copies and copies[name] in source.tensors:
            equal.append((tensor, source.tensors[copies[name]]))
        elif name.endswith(fp8.SCALE_SUFFIX) and name.removesuffix(fp8.SCALE_SUFFIX) in expected:
            scales.append(name)
            weight = source.tensors.get(name.removesuffix(fp8.SCALE_SUFFIX))
            if weight is not None and weight.dtype != fp8.STORED:
                problems.append(f"{tensor.file}: tensor {name} scales {weight.name}, which is {weight.dtype}")
        elif layout.architecture.is_derived(name):
            ignored.append(name)
        else:
            problems.append(f"{tensor.file}: tensor {name} is unknown to architecture {layout.architecture.name}")
    problems += [f"{source.dir}: tensor {name} is missing" for name in expected if name not in source.tensors]
    if problems:
        raise InputError(
            "\n".join(problems[:_LISTED] + [f"… and {len(problems) - _LISTED} more"] * (len(problems) > _LISTED))
        )
    blocks = list(layout.blocks())
    plan = ImportPlan(
        layout,
        tuple(_tensors(layout, blocks, source)),
        tuple(chunk for b in blocks for chunk in _chunks(layout, b, source, chunk_bytes, block)),
        tuple(equal),
        tuple(ignored),
        tuple(scales),
        tuple(layout.extra_states()),
    )
    if wrong := coverage_problems(plan, source):
        raise VerificationFailed("\n".join([f"{source.dir}: the import would not be complete", *wrong]))
    return plan


def _first_predictions(layout: Layout) -> Iterator[Block]:
    """One block of each entry of multi-token prediction."""
    for entry in layout.entries:
        if entry.predicts:
            yield from itertools.islice(layout.blocks_of(entry), 1)


def _tensor_problems(tensor: HFTensor, shape: Shape, source: HFSource, block: tuple[int, int] | None) -> Iterator[str]:
    if tensor.shape != shape:
        yield f"{tensor.file}: tensor {tensor.name} has shape {list(tensor.shape)}; config.json implies {list(shape)}"
    if tensor.dtype in _WEIGHTS:
        return
    where = f"{tensor.file}: tensor {tensor.name}"
    if tensor.dtype != fp8.STORED:
        yield f"{where} is {tensor.dtype}; weights are {', '.join(_WEIGHTS)}, or {fp8.STORED} with scales"
        return
    if block is None:
        yield f"{where} is {tensor.dtype}: config.json declares no fp8 weight_block_size in quantization_config"
        return
    scale = source.tensors.get(tensor.name + fp8.SCALE_SUFFIX)
    if scale is None:
        yield f"{where} is {tensor.dtype}, its scales {tensor.name}{fp8.SCALE_SUFFIX} are missing"
    elif len(shape) != 2 or scale.shape != fp8.scale_shape(shape, block) or scale.dtype not in _WEIGHTS:
        yield f"{where} has scales of shape {list(scale.shape)} and type {scale.dtype} for blocks of {list(block)}"


def _stored_dtype(source: HFSource, name: str) -> DType:
    """The type in which an HF tensor goes into the checkpoint."""
    spelled = source.tensors[name].dtype
    return fp8.TARGET if spelled == fp8.STORED else _WEIGHTS[spelled]


def _tensors(layout: Layout, blocks: Iterable[Block], source: HFSource) -> Iterator[PlannedTensor]:
    """One type for each key: a checkpoint tensor, unlike a list of HF tensors, cannot mix them."""
    types: dict[str, set[DType]] = defaultdict(set)
    for block in blocks:
        types[layout.key(block.entry, block.layer)] |= {_stored_dtype(source, name) for name in block.sources}
    mixed = [
        f"{source.dir}: the tensors of {key} are {' and '.join(sorted(d.safetensors for d in found))}; "
        "save the model in one type first"
        for key, found in types.items()
        if len(found) > 1
    ]
    if mixed:
        raise InputError("\n".join(mixed))
    for _, key, shape in layout.tensors():
        (dtype,) = types[key]
        yield PlannedTensor(key, shape, dtype)


def _chunks(
    layout: Layout, block: Block, source: HFSource, limit: int, scaled: tuple[int, int] | None
) -> Iterator[ChunkItem]:
    dtype = _stored_dtype(source, block.sources[0])
    key, index = layout.key(block.entry, block.layer), layout.index(block)
    row_bytes = block.row_elements * dtype.itemsize
    rest = (0,) * (len(block.shape) - 1)
    for start, stop in _windows(block, max(1, limit // row_bytes)):
        pieces = []
        for run in clip(block.runs, start, stop):
            tensor = source.tensors[block.sources[run.source]]
            scale, source_row_bytes = None, row_bytes
            if tensor.dtype == fp8.STORED:
                assert scaled is not None
                scales = source.tensors[tensor.name + fp8.SCALE_SUFFIX]
                scale = fp8.Scale(scales.file, scales.start, scales.dtype, block.row_elements, scaled)
                source_row_bytes = block.row_elements
            begin = tensor.start + run.source_start * source_row_bytes
            size = run.rows * source_row_bytes
            pieces.append(Piece(tensor.name, tensor.file, begin, size, run.source_start, scale))
        size_of = (1,) * len(index) + (stop - start, *block.shape[1:])
        yield ChunkItem(key, (*index, start, *rest), size_of, dtype, tuple(pieces))


def _windows(block: Block, rows: int) -> Iterator[tuple[int, int]]:
    """Row ranges of the chunks. The halves of a joined tensor are apart: a tensor-parallel rank reads from each."""
    if block.entry.op is Op.JOIN:
        bounds = [(run.start, run.start + run.rows) for run in block.runs]
    else:
        bounds = [(0, block.shape[0])]
    for low, high in bounds:
        for start in range(low, high, rows):
            yield start, min(start + rows, high)


def coverage_problems(plan: ImportPlan, source: HFSource) -> list[str]:
    """Proof of completeness from the plan alone, independent of how it was made.

    Each byte of each HF tensor is used exactly once, each element of each checkpoint tensor is written exactly once.
    """
    problems = []
    used: dict[str, list[tuple[int, int]]] = defaultdict(list)
    boxes: dict[str, list[tuple[Shape, Shape]]] = defaultdict(list)
    for chunk in plan.chunks:
        boxes[chunk.key].append((chunk.offset, chunk.size))
        for piece in chunk.pieces:
            used[piece.tensor].append((piece.start, piece.bytes))
        if sum(piece.written_bytes for piece in chunk.pieces) != chunk.bytes:
            problems.append(f"{chunk.key} at {list(chunk.offset)}: the pieces do not fill the chunk")
    left_out = {tensor.name for tensor, _ in plan.equal} | {*plan.ignored, *plan.scales}
    for name, tensor in source.tensors.items():
        if name not in left_out and (problem := interval_problem(tensor.start, tensor.bytes, used[name])):
            problems.append(f"{name}: {problem}")
    shapes = {tensor.key: tensor.shape for tensor in plan.tensors}
    for key in sorted(shapes.keys() | boxes.keys()):
        problem = tiling_problem(shapes.get(key, ()), boxes[key])
        if problem:
            problems.append(f"{key}: {problem}")
    return problems
