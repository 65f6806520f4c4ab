"""The plan of an export: which rows of which checkpoint tensor make up each HF tensor, and where it lies on disk.

Works on checkpoints of any tensor, pipeline, expert or data parallel layout, since a torch_dist checkpoint names global
tensors and says for each chunk where in them it belongs. Pure data; no weight is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pamp_pipelines.conversion.architectures import Entry
from pamp_pipelines.conversion.coverage import Shape, tiling_problem
from pamp_pipelines.conversion.dtypes import DType
from pamp_pipelines.conversion.layout import Block, Layout
from pamp_pipelines.conversion.rows import Run, rows_of_source
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, StoredChunk, StoredTensor
from pamp_pipelines.errors import InputError

_MODEL = ("decoder.", "embedding.", "output_layer.", "mtp.", "encoder.")
"""First parts of the names of model weights; everything else (optimizer.*, rng_state, …) is not exported."""
_LAYERS = "decoder.layers."


@dataclass(frozen=True)
class GatherItem:
    """One HF tensor to be written. `runs` say which rows of the block they come from, in the order of its own rows.

    chunks: those of the block, with offsets and sizes relative to it.
    """

    name: str
    shape: Shape
    stored: DType
    target: DType
    runs: tuple[Run, ...]
    chunks: tuple[StoredChunk, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.target.itemsize


@dataclass(frozen=True)
class OutputFile:
    """A safetensors file: its header and the tensors in the order in which they stand."""

    name: str
    header: bytes
    items: tuple[tuple[GatherItem, int], ...]
    """Each tensor with the byte at which it begins in the file."""

    @property
    def bytes(self) -> int:
        return len(self.header) + sum(item.bytes for item, _ in self.items)


@dataclass(frozen=True)
class ExportPlan:
    """All that an export writes."""

    files: tuple[OutputFile, ...]
    padding_rows: int
    """Rows of vocabulary padding that are cut off."""
    skipped: int
    """Tensors of the checkpoint that are no model weights."""

    @property
    def items(self) -> list[GatherItem]:
        return [item for file in self.files for item, _ in file.items]

    @property
    def weight_bytes(self) -> int:
        """Size of the exported weights."""
        return sum(item.bytes for item in self.items)

    @property
    def dtypes(self) -> list[DType]:
        """Types of the exported weights, the one with most bytes first."""
        sizes: dict[DType, int] = {}
        for item in self.items:
            sizes[item.target] = sizes.get(item.target, 0) + item.bytes
        return sorted(sizes, key=lambda dtype: -sizes[dtype])

    def index(self) -> bytes | None:
        """Content of `model.safetensors.index.json`; None where one file holds everything."""
        if len(self.files) == 1:
            return None
        weight_map = {item.name: file.name for file in self.files for item, _ in file.items}
        content = {"metadata": {"total_size": self.weight_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        return (json.dumps(content, indent=2) + "\n").encode()


def plan_export(layout: Layout, checkpoint: StoredCheckpoint, dtype: DType | None, max_shard_bytes: int) -> ExportPlan:
    """Plans the export of a checkpoint.

    Raises:
        InputError: the checkpoint lacks tensors, holds others than the architecture has, or their shapes or chunks do
            not fit; all problems at once.
    """
    problems: list[str] = []
    used: set[str] = set()
    items: list[tuple[tuple[int, int], GatherItem]] = []
    padding = 0
    for number, entry in enumerate(layout.entries):
        for tensor, blocks in _holders(layout, entry, checkpoint, problems):
            used.add(tensor.key)
            shape = layout.shape(entry) if tensor.key in _keys(entry) else blocks[0].shape
            if problem := _fit_problem(entry, shape, tensor):
                problems.append(f"{checkpoint.dir}: {tensor.key}: {problem}")
                continue
            padding = max(padding, tensor.shape[0] - shape[0])
            for block in blocks:
                items += [((_place(block, layout), number), item) for item in _gather(block, tensor, dtype)]
    unknown = [k for k in checkpoint.tensors if k.startswith(_MODEL) and k not in used]
    problems += [
        f"{checkpoint.dir}: holds {key}, which architecture {layout.architecture.name} does not have; "
        "is this the template of the same model?"
        for key in sorted(unknown)
    ]
    if problems:
        raise InputError("\n".join(problems))
    ordered = [item for _, item in sorted(items, key=lambda pair: pair[0])]
    skipped = len(checkpoint.tensors) - len(used)
    return ExportPlan(tuple(_files(ordered, max_shard_bytes)), padding, skipped)


def _place(block: Block, layout: Layout) -> int:
    """Order in the files: embedding, layers, the rest."""
    if block.layer is not None:
        return block.layer
    return -1 if block.entry.key.startswith("embedding.") else layout.dimensions["L"]


def _keys(entry: Entry) -> tuple[str, ...]:
    return (entry.key, *entry.aliases)


def _holders(
    layout: Layout, entry: Entry, checkpoint: StoredCheckpoint, problems: list[str]
) -> Iterator[tuple[StoredTensor, list[Block]]]:
    """The checkpoint tensors of an entry, each with the blocks that it holds.

    A layer's tensor is stacked over the layers, or, in checkpoints of models whose layers differ, has a key of its own.
    """
    blocks = list(layout.blocks_of(entry))
    for key in _keys(entry):
        if key in checkpoint.tensors:
            yield checkpoint.tensors[key], blocks
            return
    missing = []
    for block in blocks:
        own = [key.replace(_LAYERS, f"{_LAYERS}{block.layer}.", 1) for key in _keys(entry) if entry.stacked]
        found = next((key for key in own if key in checkpoint.tensors), None)
        if found is None:
            missing.append(block.layer)
        else:
            yield checkpoint.tensors[found], [block]
    if missing:
        of_layers = f" for layers {missing}" if len(missing) < len(blocks) else ""
        problems.append(f"{checkpoint.dir}: {entry.key} is missing{of_layers}")


def _fit_problem(entry: Entry, shape: Shape, tensor: StoredTensor) -> str | None:
    """Why a checkpoint tensor cannot be the tensor of this shape, or None."""
    if tensor.dtype is None:
        return "is of a type that weights do not have"
    stored = tensor.shape
    if entry.padded and len(stored) == len(shape):
        if stored[0] < shape[0]:
            return f"holds {stored[0]} rows of vocabulary, config.json has vocab_size {shape[0]}"
        stored = (shape[0], *stored[1:])
    if stored != shape:
        return f"has shape {list(tensor.shape)}; config.json implies {list(shape)}"
    return tiling_problem(tensor.shape, [(chunk.offset, chunk.size) for chunk in tensor.chunks])


def _gather(block: Block, tensor: StoredTensor, dtype: DType | None) -> Iterator[GatherItem]:
    assert tensor.dtype is not None
    chunks = tuple(_relative(block, tensor))
    for number, (name, shape) in enumerate(zip(block.sources, block.source_shapes, strict=True)):
        moved = tuple(rows_of_source(list(block.runs), number))
        yield GatherItem(name, shape, tensor.dtype, dtype or tensor.dtype, moved, chunks)


def _relative(block: Block, tensor: StoredTensor) -> Iterator[StoredChunk]:
    """The chunks that hold a part of the block. A chunk over several layers keeps its extent along the layers."""
    for chunk in tensor.chunks:
        if len(tensor.shape) == len(block.shape):
            yield chunk
        elif block.layer is not None and chunk.offset[0] <= block.layer < chunk.offset[0] + chunk.size[0]:
            offset = (chunk.offset[0] - block.layer, *chunk.offset[1:])
            yield StoredChunk(offset, chunk.size, chunk.file, chunk.start, chunk.length)


def _files(items: Sequence[GatherItem], limit: int) -> Iterator[OutputFile]:
    """Packs the tensors, in order, into files of at most `limit` bytes; names as transformers gives them."""
    groups: list[list[GatherItem]] = [[]]
    size = 0
    for item in items:
        if groups[-1] and size + item.bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += item.bytes
    for number, group in enumerate(groups, 1):
        name = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        header, starts = safetensors_header([(i.name, i.target, i.shape) for i in group])
        yield OutputFile(name, header, tuple(zip(group, starts, strict=True)))


def safetensors_header(tensors: Sequence[tuple[str, DType, Shape]]) -> tuple[bytes, list[int]]:
    """(header of a safetensors file, byte at which each tensor begins in it); format: hf_source.py."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin, offsets = 0, []
    for name, dtype, shape in tensors:
        end = begin + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": dtype.safetensors, "shape": list(shape), "data_offsets": [begin, end]}
        offsets.append(begin)
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8, as the reference implementation writes them
    header = len(text).to_bytes(8, "little") + text
    return header, [len(header) + offset for offset in offsets]
