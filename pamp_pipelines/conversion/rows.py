"""The closed set of operations as maps between rows: what lies where, in both directions, without a tensor library.

Every operation only moves whole rows (slices along axis 0 of the unstacked tensor), so it is a list of runs. A run is
contiguous in the HF tensor and in the checkpoint tensor alike: import copies bytes, export copies them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pamp_pipelines.conversion.architectures import Entry, Op


@dataclass(frozen=True, slots=True)
class Run:
    """`rows` rows: from `start` in the checkpoint tensor, from `source_start` in the entry's source number `source`."""

    start: int
    source: int
    source_start: int
    rows: int


def runs(entry: Entry, dimensions: Mapping[str, int]) -> list[Run]:
    """The runs of one entry in the order of the checkpoint tensor's rows."""
    heights = [dimensions[source.axes[0]] for source in entry.sources]
    result: list[Run] = []
    position = 0
    for source, start, rows in _order(entry.op, heights, dimensions):
        result.append(Run(position, source, start, rows))
        position += rows
    return result


def _order(op: Op, heights: list[int], dimensions: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    """(source, first row, rows) in the order in which they stand in the checkpoint."""
    if op is Op.GROUP_QKV:
        # Megatron's fused attention views the rows as [KV head, query heads of its group + key + value, head].
        groups = dimensions["K"] // dimensions["D"]
        for group in range(groups):
            for source, height in enumerate(heights):
                rows = height // groups
                yield source, group * rows, rows
    else:  # IDENTITY is a JOIN of one source
        for source, height in enumerate(heights):
            yield source, 0, height


def clip(all_runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """The parts of the runs that lie in checkpoint rows [start, stop)."""
    clipped = []
    for run in all_runs:
        low, high = max(start, run.start), min(stop, run.start + run.rows)
        if low < high:
            clipped.append(Run(low, run.source, run.source_start + low - run.start, high - low))
    return clipped


def rows_of_source(all_runs: Sequence[Run], source: int) -> list[Run]:
    """The runs of one source in the order of its own rows: the inverse of the operation."""
    return sorted((run for run in all_runs if run.source == source), key=lambda run: run.source_start)
