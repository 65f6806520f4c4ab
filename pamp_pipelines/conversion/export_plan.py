"""The plan of an export: which rows of which checkpoint tensor make up each HF tensor, and where it lies on disk.

Works on checkpoints of any tensor, pipeline, expert or data parallel layout, since a torch_dist checkpoint names global
tensors and says for each chunk where in them it belongs. Pure data; no weight is read.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pamp_pipelines.conversion.architectures import Entry
from pamp_pipelines.conversion.coverage import Shape, tiling_problem
from pamp_pipelines.conversion.dtypes import DType
from pamp_pipelines.conversion.layout import Block, Layout
from pamp_pipelines.conversion.rows import Run, rows_of_source
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, StoredChunk, StoredTensor
from pamp_pipelines.errors import InputError

_MODEL = ("decoder.", "embedding.", "output_layer.", "mtp.", "encoder.")
"""First parts of the names of model weights; everything else (optimizer.*, rng_state, …) is not exported."""
_PREDICTION = "mtp."


@dataclass(frozen=True, slots=True)
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

    @cached_property
    def items(self) -> list[GatherItem]:
        return [item for file in self.files for item, _ in file.items]

    @cached_property
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
    if not any(key.startswith(_PREDICTION) for key in checkpoint.tensors):
        layout = layout.without_prediction()
    for number, entry in enumerate(layout.entries):
        for tensor, stacked, blocks in _holders(layout, entry, checkpoint, problems):
            used.add(tensor.key)
            shape = layout.shape(entry, stacked=stacked)
            if problem := _fit_problem(entry, shape, tensor):
                problems.append(f"{checkpoint.dir}: {tensor.key}: {problem}")
                continue
            padding = max(padding, tensor.shape[0] - shape[0])
            chunks = _by_block(tensor, len(layout.index(blocks[0], stacked=stacked)))
            for block in blocks:
                index = layout.index(block, stacked=stacked)
                place = _place(block, layout), number
                items += [(place, item) for item in _gather(block, index, chunks[index], tensor, dtype)]
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
    """Order in the files: embedding, layers, layers of multi-token prediction, the rest."""
    if block.layer is not None:
        return block.layer + (layout.dimensions["L"] if block.entry.predicts else 0)
    last = layout.dimensions["L"] + len(layout.predict_layers)
    return -1 if block.entry.key.startswith("embedding.") else last


def _keys(entry: Entry) -> tuple[str, ...]:
    return (entry.key, *entry.aliases)


def _holders(
    layout: Layout, entry: Entry, checkpoint: StoredCheckpoint, problems: list[str]
) -> Iterator[tuple[StoredTensor, bool, list[Block]]]:
    """The checkpoint tensors of an entry, whether each is stacked over layers, and the blocks that it holds.

    A layer's tensor is stacked over the layers, or, in checkpoints of models whose layers differ, has a key of its own.
    """
    blocks = list(layout.blocks_of(entry))
    if layout.stacked(entry) or not entry.per_layer:
        for key in _keys(entry):
            if blocks and key in checkpoint.tensors:
                yield checkpoint.tensors[key], True, blocks
                return
    missing = []
    for layer, group in itertools.groupby(blocks, key=lambda block: block.layer):
        own = [layout.key(entry, layer, stacked=False, key=key) for key in _keys(entry)]
        found = next((key for key in own if key in checkpoint.tensors), None)
        if found is None:
            missing.append(layer)
        else:
            yield checkpoint.tensors[found], False, list(group)
    if missing:
        of_layers = f" for layers {missing}" if missing != [None] and len(missing) < len(blocks) else ""
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


def _gather(
    block: Block, index: Shape, chunks: Sequence[StoredChunk], tensor: StoredTensor, dtype: DType | None
) -> Iterator[GatherItem]:
    """The HF tensors of a block. A chunk over several layers or experts keeps its extent along them."""
    assert tensor.dtype is not None
    start = (*index, *[0] * len(block.shape))
    relative = tuple(
        StoredChunk(tuple(o - s for o, s in zip(c.offset, start, strict=True)), c.size, c.file, c.start, c.length)
        for c in chunks
    )
    target = dtype or tensor.dtype
    for number, (name, shape) in enumerate(zip(block.sources, block.source_shapes, strict=True)):
        moved = tuple(rows_of_source(block.runs, number))
        yield GatherItem(name, shape, tensor.dtype, target, moved, relative)
    for name in block.copies:
        yield GatherItem(name, block.shape, tensor.dtype, target, block.runs, relative)


def _by_block(tensor: StoredTensor, leading: int) -> dict[Shape, list[StoredChunk]]:
    """The chunks that hold a part of each block, by the block's index along the first `leading` axes."""
    found: dict[Shape, list[StoredChunk]] = defaultdict(list)
    for chunk in tensor.chunks:
        spans = [range(o, o + s) for o, s in zip(chunk.offset[:leading], chunk.size[:leading], strict=True)]
        for index in itertools.product(*spans):
            found[index].append(chunk)
    return found


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
