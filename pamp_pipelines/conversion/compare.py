"""Checkpoints compared as the Hugging Face model that an export makes of them.

Axes: R  rows of a block    C  its remaining axes
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pamp_pipelines.conversion.bits import Bits, convert
from pamp_pipelines.conversion.dtypes import FLOAT32
from pamp_pipelines.conversion.export_plan import GatherItem, plan_export
from pamp_pipelines.conversion.gather import ChunkReader
from pamp_pipelines.conversion.layout import Layout
from pamp_pipelines.conversion.plan import COPY_BYTES
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint

_ANY_SIZE = 2**62


@dataclass(frozen=True)
class Difference:
    """A tensor that is not what it should be: how many elements differ, and the first of them."""

    tensor: str
    elements: int
    first: tuple[int, ...]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.tensor}: {self.reason or f'{self.elements} elements differ, the first at {list(self.first)}'}"


class Comparison:
    """Counts what differs in one tensor, of which the rows come a block at a time."""

    def __init__(self, tensor: str) -> None:
        self._tensor = tensor
        self._elements = 0
        self._first: tuple[int, ...] = ()

    def add(self, row: int, ours: Bits, theirs: Bits) -> None:
        """Rows from `row` on, as they are and as they should be: arrays [R, C…] of one type."""
        if np.array_equal(ours, theirs):
            return
        places = np.argwhere(ours != theirs)
        self._elements += len(places)
        self._first = self._first or (row + int(places[0][0]), *map(int, places[0][1:]))

    @property
    def difference(self) -> Difference | None:
        return Difference(self._tensor, self._elements, self._first) if self._elements else None


def rows_in_order(reader: ChunkReader, item: GatherItem) -> Iterator[tuple[int, Bits]]:
    """(first row in the HF tensor, rows [R, C…] as the checkpoint has them), from the first row to the last."""
    row_bytes = math.prod(item.shape[1:]) * item.stored.itemsize
    step = max(1, COPY_BYTES // row_bytes)
    for run in item.runs:
        for row in range(0, run.rows, step):
            count = min(step, run.rows - row)
            yield run.source_start + row, reader.rows(item, run.start + row, count)


def differences(layout: Layout, original: StoredCheckpoint, other: StoredCheckpoint) -> list[Difference]:
    """The tensors of which `other` has not the values of `original`, whatever the layouts of the two.

    `other` may be float32, which holds the values of all types: what a float32 model saves of bfloat16 bits.

    Raises:
        InputError: one of the checkpoints is damaged, or is not of this layout.
    """
    expected = plan_export(layout, original, None, _ANY_SIZE).items
    found = {item.name: item for item in plan_export(layout, other, None, _ANY_SIZE).items}
    with (
        contextlib.closing(ChunkReader(original.dir)) as one,
        contextlib.closing(ChunkReader(other.dir)) as two,
    ):
        return [d for item in expected if (d := _between(one, item, two, found[item.name])) is not None]


def _between(one: ChunkReader, item: GatherItem, two: ChunkReader, other: GatherItem) -> Difference | None:
    if other.stored not in (item.stored, FLOAT32):
        return Difference(item.name, 0, (), f"is {other.stored.name}, was {item.stored.name}")
    comparison = Comparison(item.name)
    for row, theirs in rows_in_order(one, item):
        # runs are those of the layout, alike for both: a row of the HF tensor is the same row of both blocks
        run = next(r for r in other.runs if r.source_start <= row < r.source_start + r.rows)
        ours = two.rows(other, run.start + row - run.source_start, len(theirs))
        comparison.add(row, ours, convert(theirs, item.stored, other.stored))
    return comparison.difference
