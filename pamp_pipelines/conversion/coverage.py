"""Proof that boxes tile a tensor, or intervals a range: everything covered, nothing twice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

Shape = tuple[int, ...]
Box = tuple[Shape, Shape]
"""(offset, size) along each axis."""


def tiling_problem(shape: Shape, boxes: Sequence[Box]) -> str | None:
    """Why the boxes do not tile a tensor of this shape exactly once; None when they do.

    Boxes that lie inside, do not overlap and have the volume of the tensor cover it.
    """
    for offset, size in boxes:
        if len(offset) != len(shape) or len(size) != len(shape):
            return f"a chunk has {len(size)} axes, the tensor {len(shape)}"
        if any(o < 0 or s < 0 or o + s > n for o, s, n in zip(offset, size, shape, strict=True)):
            return f"chunk {list(size)} at {list(offset)} lies outside the tensor {list(shape)}"
    overlap = _overlap(boxes)
    if overlap is not None:
        return f"chunks at {list(overlap[0])} and {list(overlap[1])} overlap"
    volume = sum(math.prod(size) for _, size in boxes)
    if volume != math.prod(shape):
        return f"chunks hold {volume} elements, the tensor {math.prod(shape)}"
    return None


def _overlap(boxes: Sequence[Box]) -> tuple[Shape, Shape] | None:
    """Offsets of two boxes that share an element. Compares only boxes that share their layer and expert."""
    if not boxes or not boxes[0][0]:
        return ((), ()) if len(boxes) > 1 else None
    groups: dict[Shape, list[Box]] = defaultdict(list)
    leading = 0  # axes along which every box has one slice: stacked tensors have one layer and expert per box
    while leading < len(boxes[0][1]) - 1 and all(size[leading] == 1 for _, size in boxes):
        leading += 1
    for box in boxes:
        groups[box[0][:leading]].append(box)
    for group in groups.values():
        group.sort()
        for i, (offset, size) in enumerate(group):
            for other, extent in group[i + 1 :]:
                if other[leading] >= offset[leading] + size[leading]:
                    break  # sorted by offset: later boxes begin further on
                if all(o < p + e and p < o + s for o, s, p, e in zip(offset, size, other, extent, strict=True)):
                    return offset, other
    return None


def interval_problem(start: int, length: int, intervals: Iterable[tuple[int, int]]) -> str | None:
    """Why (start, length) intervals do not tile a range exactly once; None when they do."""
    position = start
    for begin, extent in sorted(intervals):
        if begin < position:
            return f"bytes {begin} to {min(position, begin + extent)} are used twice"
        if begin > position:
            return f"bytes {position} to {begin} are not used"
        position = begin + extent
    if position != start + length:
        return f"used up to byte {position} of {start + length}"
    return None
