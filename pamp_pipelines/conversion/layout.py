"""An architecture's table made concrete for one config: every checkpoint tensor, every HF tensor, with shapes.

Shape legend: table.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from pamp_pipelines.conversion.architectures import Architecture, Config, Entry, Layers, architecture_of, tied
from pamp_pipelines.conversion.coverage import Shape
from pamp_pipelines.conversion.rows import Run, runs
from pamp_pipelines.errors import VerificationFailed


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a checkpoint tensor that is one layer's and one expert's, or the whole of one that is not stacked.

    layer: index among the layers of the decoder, or of multi-token prediction; None outside of them.
    sources: names of the HF tensors, in the order of `entry.sources`. runs: where their rows lie in the block.
    copies: names of HF tensors that repeat the whole block.
    """

    entry: Entry
    layer: int | None
    expert: int | None
    shape: Shape
    sources: tuple[str, ...]
    source_shapes: tuple[Shape, ...]
    runs: tuple[Run, ...]
    copies: tuple[str, ...] = ()

    @property
    def row_elements(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class Layout:
    """What a checkpoint of this model holds and what its HF directory holds.

    prediction: whether the weights have the layers of multi-token prediction that the config declares. transformers
        neither loads nor saves them.
    """

    architecture: Architecture
    config: Config
    dimensions: dict[str, int]
    prediction: bool = True

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        found = self.architecture.entries_for(self.config)
        return tuple(entry for entry in found if self.prediction or not entry.predicts)

    @cached_property
    def sparse(self) -> tuple[bool, ...] | None:
        return self.architecture.sparse_layers(self.config)

    @property
    def predict_layers(self) -> range:
        """HF indices of the layers of multi-token prediction: they follow those of the decoder."""
        first = self.dimensions["L"]
        return range(first, first + (self.dimensions.get("P", 0) if self.prediction else 0))

    def without_prediction(self) -> Layout:
        """The same model without its layers of multi-token prediction."""
        return replace(self, prediction=False)

    def stacked(self, entry: Entry) -> bool:
        """Whether Megatron keeps the layers of this entry in one tensor, one layer per index."""
        return entry.axes[0] == "L" and self.sparse is None

    def layers_of(self, entry: Entry) -> Iterable[int]:
        """The layers that have this entry, for an entry that belongs to layers."""
        if entry.predicts:
            return range(self.dimensions["P"])
        if self.sparse is None:
            # layers that are all alike are sparse where the architecture has experts at all
            dense_only = entry.layers is Layers.DENSE and "E" in self.dimensions
            return range(0 if dense_only else self.dimensions["L"])
        wanted = {Layers.ALL: (True, False), Layers.DENSE: (False,), Layers.SPARSE: (True,)}[entry.layers]
        return [layer for layer, sparse in enumerate(self.sparse) if sparse in wanted]

    def key(self, entry: Entry, layer: int | None, *, stacked: bool | None = None, key: str = "") -> str:
        """Name of the checkpoint tensor that holds this layer; `key`: an alias to take for the entry's own name."""
        key = key or entry.key
        if layer is None or (self.stacked(entry) if stacked is None else stacked):
            return key
        return key.replace("layers.", f"layers.{layer}.", 1)

    def index(self, block: Block, *, stacked: bool | None = None) -> Shape:
        """Where the block lies along the leading axes of its checkpoint tensor: layer, expert, both or none."""
        layers = self.stacked(block.entry) if stacked is None else stacked
        layer = (block.layer,) if layers and block.layer is not None else ()
        return layer + (() if block.expert is None else (block.expert,))

    def tensors(self) -> Iterator[tuple[Entry, str, Shape]]:
        """Every checkpoint tensor: its entry, key and global shape, without vocabulary padding."""
        for entry in self.entries:
            layers: Iterable[int | None] = (None,)
            if entry.per_layer:
                layers = list(self.layers_of(entry))[: 1 if self.stacked(entry) else None]
            for layer in layers:
                yield entry, self.key(entry, layer), self.shape(entry)

    def shape(self, entry: Entry, *, stacked: bool | None = None) -> Shape:
        """Global shape in the checkpoint, without vocabulary padding."""
        with_layers = not entry.per_layer or (self.stacked(entry) if stacked is None else stacked)
        return tuple(self.dimensions[axis] for axis in (entry.axes if with_layers else entry.axes[1:]))

    def blocks(self) -> Iterator[Block]:
        """All blocks, embeddings first, then entry by entry."""
        for entry in self.entries:
            yield from self.blocks_of(entry)

    def blocks_of(self, entry: Entry) -> Iterator[Block]:
        """The blocks of one entry, by layer, then by expert."""
        shape = tuple(self.dimensions[axis] for axis in entry.block_axes)
        shapes = tuple(tuple(self.dimensions[axis] for axis in source.axes) for source in entry.sources)
        moved = tuple(runs(entry, self.dimensions))
        first = self.dimensions["L"] if entry.predicts else 0
        experts = range(self.dimensions["E"]) if entry.per_expert else (None,)
        copies = self._copies(entry)
        for layer in self.layers_of(entry) if entry.per_layer else (None,):
            number = None if layer is None else first + layer
            for expert in experts:
                names = tuple(source.name.format(layer=number, expert=expert) for source in entry.sources)
                yield Block(entry, layer, expert, shape, names, shapes, moved, copies)

    def _copies(self, entry: Entry) -> tuple[str, ...]:
        if not entry.predict_copy:
            return ()
        return tuple(entry.predict_copy.format(layer=layer) for layer in self.predict_layers)

    def hf_shapes(self) -> dict[str, Shape]:
        """The HF tensors that the model has, without those that only repeat another."""
        return {n: s for b in self.blocks() for n, s in zip(b.sources, b.source_shapes, strict=True)}

    def copies(self) -> dict[str, str]:
        """HF tensors that the model does not need, with the one that each must equal."""
        found = {}
        for entry in self.architecture.entries:
            if not (entry.tied_to or entry.predict_copy):
                continue
            (name,) = (source.name for source in entry.sources)
            if entry.tied_to and tied(self.config):
                found[name] = name = entry.tied_to
            found |= dict.fromkeys(self._copies(entry), name)
        return found

    def parameters(self) -> int:
        """Number of weights of the HF model, those that only repeat others left out."""
        return sum(
            math.prod(shape) * (self.dimensions["E"] if entry.per_expert else 1) * len(list(self.layers_of(entry)))
            if entry.per_layer
            else math.prod(shape)
            for entry in self.entries
            for shape in [tuple(self.dimensions[axis] for axis in entry.block_axes)]
        )

    def extra_states(self) -> list[str]:
        """Unique keys of the `_extra_state` objects: one for each module, or for each layer and expert of a module."""
        keys = []
        for module in self.architecture.extra_states:
            experts = self.dimensions["E"] if ".experts.experts." in module else None
            if not module.startswith(("decoder.layers.", "mtp.layers.")):
                keys += [f"{module}._extra_state/{shard}" for shard in _shards(None, experts)]
            elif module.startswith("decoder.") and self.sparse is None:
                keys += [f"{module}._extra_state/{shard}" for shard in _shards(self.dimensions["L"], experts)]
            else:
                count = self.dimensions["L"] if module.startswith("decoder.") else len(self.predict_layers)
                for layer in range(count):
                    own = module.replace("layers.", f"layers.{layer}.", 1)
                    keys += [f"{own}._extra_state/{shard}" for shard in _shards(None, experts)]
        return keys


def _shards(layers: int | None, experts: int | None) -> Iterator[str]:
    """Last parts of the objects' keys: `shard_<indices>_<numbers>`."""
    sizes = [n for n in (layers, experts) if n is not None]
    if not sizes:
        yield "shard_0_1"
        return
    numbers = ".".join(map(str, sizes))
    for i in range(math.prod(sizes)):
        index = (i,) if len(sizes) == 1 else divmod(i, sizes[1])
        yield f"shard_{'.'.join(map(str, index))}_{numbers}"


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
        block = next(layout.blocks_of(entry), None)
        if block is None:
            continue
        heights = sum(shape[0] for shape in block.source_shapes)
        rests = {shape[1:] for shape in block.source_shapes}
        if heights != block.shape[0] or rests != {block.shape[1:]}:
            shapes = ", ".join(str(list(shape)) for shape in block.source_shapes)
            name = layout.architecture.name
            yield f"table of {name}: {entry.key} is {list(block.shape)}, its sources are {shapes}"
