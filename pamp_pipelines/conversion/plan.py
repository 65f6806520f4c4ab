"""The plan of an import: which bytes of which safetensors file go into which chunk. Pure data; no weight is read.

Every operation moves whole rows (rows.py) and both formats store rows in order, so a chunk is a list of byte ranges.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import defaultdict
from collections.abc import Iterator
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

_CHUNK_PLAN_BYTES = 1500
"""Memory of one chunk in a plan: mostly the headers of its source (1.0 kB measured for DeepSeek-V3, with scales)."""

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
    """All that an import writes. Chunks are computed whenever they are asked for: a model may have tens of thousands.

    layout: what the source turned out to hold.
    chunk_bytes: size of the largest chunk.
    tensors: those of the checkpoint, in the order in which `chunks` goes through them.
    equal: pairs of HF tensors that must hold the same bytes (a copy of a tied embedding).
    scales: HF tensors that are the scales of another.
    ignored: HF tensors that follow from the config.
    """

    layout: Layout
    source: HFSource
    chunk_bytes: int
    tensors: tuple[PlannedTensor, ...]
    equal: tuple[tuple[HFTensor, HFTensor], ...]
    ignored: tuple[str, ...]
    scales: tuple[str, ...]

    def chunks(self) -> Iterator[ChunkItem]:
        """Every chunk, tensor by tensor, those of a tensor in the order of their offsets."""
        scaled = fp8_blocks(self.layout.config)
        for block in self.layout.blocks():
            yield from _chunks(self.layout, block, self.source, self.chunk_bytes, scaled)

    @cached_property
    def sizes(self) -> array[int]:
        """Bytes of each chunk."""
        return array("Q", (chunk.bytes for chunk in self.chunks()))

    @cached_property
    def bytes(self) -> int:
        return sum(self.sizes)


def peak_bytes(workers: int, chunks: int = 0) -> int:
    """Upper estimate of the anonymous memory of an import or export with that many worker processes.

    chunks: those of the plan. A process computes them one at a time or those of one bucket, and a tensor never is in
    memory, so the bound depends on the model's size by little more than the headers of its source.
    """
    return (workers + 1) * _WORKER_BYTES + workers * 4 * COPY_BYTES + chunks * _CHUNK_PLAN_BYTES


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
    if not any(source.tensors.get(name) for b in _first_predictions(layout) for name in b.sources):
        layout = layout.without_prediction()
    copies = layout.copies()
    equal, ignored, scales = [], [], []
    problems: list[str] = []
    used: set[str] = set()
    scaled = fp8_blocks(layout.config)
    for block in layout.blocks():
        for name, shape in zip(block.sources, block.source_shapes, strict=True):
            tensor = source.tensors.get(name)
            if tensor is None:
                problems.append(f"{source.dir}: tensor {name} is missing")
            else:
                used.add(tensor.name)
                problems += _tensor_problems(tensor, shape, source, scaled)
    for name, tensor in source.tensors.items():
        if name in used:
            continue
        if name in copies and copies[name] in source.tensors:
            equal.append((tensor, source.tensors[copies[name]]))
        elif name.endswith(fp8.SCALE_SUFFIX) and name.removesuffix(fp8.SCALE_SUFFIX) in used:
            scales.append(name)
            weight = source.tensors[name.removesuffix(fp8.SCALE_SUFFIX)]
            if weight.dtype != fp8.STORED:
                problems.append(f"{tensor.file}: tensor {name} scales {weight.name}, which is {weight.dtype}")
        elif layout.architecture.is_derived(name):
            ignored.append(name)
        else:
            problems.append(f"{tensor.file}: tensor {name} is unknown to architecture {layout.architecture.name}")
    if problems:
        raise InputError(
            "\n".join(problems[:_LISTED] + [f"… and {len(problems) - _LISTED} more"] * (len(problems) > _LISTED))
        )
    tensors = tuple(_tensors(layout, source))
    plan = ImportPlan(layout, source, chunk_bytes, tensors, tuple(equal), tuple(ignored), tuple(scales))
    if wrong := coverage_problems(plan):
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


def _tensors(layout: Layout, source: HFSource) -> Iterator[PlannedTensor]:
    """One type for each key: a checkpoint tensor, unlike a list of HF tensors, cannot mix them."""
    mixed = []
    for key, blocks in itertools.groupby(layout.blocks(), lambda block: layout.key(block.entry, block.layer)):
        types: set[DType] = set()
        for block in blocks:
            types |= {_stored_dtype(source, name) for name in block.sources}
        if len(types) > 1:
            spelled = " and ".join(sorted(dtype.safetensors for dtype in types))
            mixed.append(f"{source.dir}: the tensors of {key} are {spelled}; save the model in one type first")
        yield PlannedTensor(key, layout.shape(block.entry), min(types, key=lambda dtype: dtype.name))
    if mixed:
        raise InputError("\n".join(mixed))


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


def coverage_problems(plan: ImportPlan) -> list[str]:
    """Proof of completeness from the plan alone, independent of how it was made.

    Each byte of each HF tensor is used exactly once, each element of each checkpoint tensor is written exactly once.
    An HF tensor lies within one checkpoint tensor, so one of these at a time is looked at.
    """
    problems = []
    source, shapes = plan.source, {tensor.key: tensor.shape for tensor in plan.tensors}
    left = source.tensors.keys() - {tensor.name for tensor, _ in plan.equal} - {*plan.ignored, *plan.scales}
    unwritten = set(shapes)
    for key, chunks in itertools.groupby(plan.chunks(), lambda chunk: chunk.key):
        used: dict[str, list[tuple[int, int]]] = defaultdict(list)
        boxes = []
        for chunk in chunks:
            boxes.append((chunk.offset, chunk.size))
            for piece in chunk.pieces:
                used[piece.tensor].append((piece.start, piece.bytes))
            if sum(piece.written_bytes for piece in chunk.pieces) != chunk.bytes:
                problems.append(f"{key} at {list(chunk.offset)}: the pieces do not fill the chunk")
        if key not in unwritten:
            problems.append(f"{key}: is written twice")
        elif problem := tiling_problem(shapes[key], boxes):
            problems.append(f"{key}: {problem}")
        unwritten.discard(key)
        for name, intervals in used.items():
            tensor = source.tensors[name]
            if name not in left:
                problems.append(f"{name}: is used twice, or follows from another tensor")
            elif problem := interval_problem(tensor.start, tensor.bytes, intervals):
                problems.append(f"{name}: {problem}")
        left.difference_update(used)  # `-=` with the view of a dict would copy all that is left
    problems += [f"{key}: nothing is written" for key in sorted(unwritten)]
    return problems + [f"{name}: is not used" for name in sorted(left)]
