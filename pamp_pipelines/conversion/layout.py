"""An architecture's table made concrete for one config: every checkpoint tensor, every HF tensor, with shapes.

Shape legend: table.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pamp_pipelines.conversion.architectures import Architecture, Config, Entry, architecture_of, tied
from pamp_pipelines.conversion.coverage import Shape
from pamp_pipelines.conversion.rows import Run, runs
from pamp_pipelines.errors import VerificationFailed


@dataclass(frozen=True)
class Block:
    """One layer of a stacked checkpoint tensor, or the whole of one that is not stacked.

    sources: names of the HF tensors, in the order of `entry.sources`. runs: where their rows lie in the block.
    """

    entry: Entry
    layer: int | None
    shape: Shape
    sources: tuple[str, ...]
    source_shapes: tuple[Shape, ...]
    runs: tuple[Run, ...]

    @property
    def row_elements(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class Layout:
    """What a checkpoint of this model holds and what its HF directory holds."""

    architecture: Architecture
    config: Config
    dimensions: dict[str, int]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.architecture.entries_for(self.config)

    def shape(self, entry: Entry) -> Shape:
        """Global shape in the checkpoint, without vocabulary padding."""
        return tuple(self.dimensions[axis] for axis in entry.axes)

    def blocks(self) -> Iterator[Block]:
        """All blocks, embeddings first, then entry by entry."""
        for entry in self.entries:
            yield from self.blocks_of(entry)

    def blocks_of(self, entry: Entry) -> Iterator[Block]:
        """The blocks of one entry, by layer."""
        axes = entry.axes[1:] if entry.stacked else entry.axes
        shape = tuple(self.dimensions[axis] for axis in axes)
        shapes = tuple(tuple(self.dimensions[axis] for axis in source.axes) for source in entry.sources)
        moved = tuple(runs(entry, self.dimensions))
        for layer in range(self.dimensions["L"]) if entry.stacked else (None,):
            names = tuple(source.name.format(layer=layer) for source in entry.sources)
            yield Block(entry, layer, shape, names, shapes, moved)

    def hf_shapes(self) -> dict[str, Shape]:
        """The HF tensors that the model has."""
        return {n: s for b in self.blocks() for n, s in zip(b.sources, b.source_shapes, strict=True)}

    def tied_copies(self) -> dict[str, str]:
        """HF tensors that a tied model does not need, with the one each must equal."""
        absent = [e for e in self.architecture.entries if e.tied_to and tied(self.config)]
        return {source.name: entry.tied_to for entry in absent for source in entry.sources}

    def parameters(self) -> int:
        """Number of parameters of the HF model."""
        return sum(math.prod(shape) for shape in self.hf_shapes().values())

    def extra_states(self) -> list[str]:
        """Unique keys of the `_extra_state` objects: one for each layer, or one."""
        layers = self.dimensions["L"]
        keys = []
        for module in self.architecture.extra_states:
            count = layers if module.startswith("decoder.layers.") else 1
            keys += [f"{module}._extra_state/shard_{i}_{count}" for i in range(count)]
        return keys


def layout_of(config: Config) -> Layout:
    """The layout of a model.

    Raises:
        InputError: unknown architecture, or an impossible config.
        VerificationFailed: the architecture's table contradicts itself.
    """
    architecture = architecture_of(config)
    layout = Layout(architecture, config, architecture.dimensions(config))
    if problems := list(_table_problems(layout)):
        raise VerificationFailed("\n".join(problems))
    return layout


def _table_problems(layout: Layout) -> Iterator[str]:
    """Operations move whole rows, so sources must have the rows' shape and as many rows as the checkpoint tensor."""
    for entry in layout.entries:
        block = next(layout.blocks_of(entry))
        heights = sum(shape[0] for shape in block.source_shapes)
        rests = {shape[1:] for shape in block.source_shapes}
        if heights != block.shape[0] or rests != {block.shape[1:]}:
            shapes = ", ".join(str(list(shape)) for shape in block.source_shapes)
            name = layout.architecture.name
            yield f"table of {name}: {entry.key} is {list(block.shape)}, its sources are {shapes}"
