"""The leaderboard on a terminal: one metric a task, and perplexity before and after; the report has them all."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pamp_pipelines.evaluation.headline import Headline

Row = Mapping[str, str]
"""A line of ``leaderboard.csv``: column to text."""

_ALWAYS = ("token_perplexity", "unigram_perplexity", "bits_per_byte")
"""Metrics of a perplexity task: all three are shown."""
_KEYS = ("model", "training_config", "version", "step", "tokens_seen")


def summary(folder: Path) -> tuple[list[Row], list[str]]:
    """Rows of the leaderboard in a folder, and the lines that tell it: both tables and where the page is."""
    from pamp_pipelines.evaluation.frames import PREFERRED
    from pamp_pipelines.evaluation.leaderboard import PAGE, WIDE, read_headlines

    file = folder / WIDE
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.is_file() else []
    lines = [
        *table(rows, PREFERRED),
        "",
        *headline_table(read_headlines(folder)),
        "",
        f"report       {folder / PAGE}",
    ]
    return list(rows), lines


def table(rows: Sequence[Row], preferred: Sequence[str]) -> Iterator[str]:
    """Aligned columns with two lines of heading; a last line says what a share of overlap is, where there is one.

    Args:
        rows: lines of the table; score columns are named ``evaluation/task/metric``.
        preferred: metrics, the most telling first.
    """
    from pamp_pipelines.evaluation.frames import COST, OVERLAP, OVERLAP_MEANS, seen_beside

    if not rows:
        return
    scores = _telling(rows[0], preferred)
    keys = [key for key in _KEYS if key in rows[0]]
    costs = [key for key in COST if any(row.get(key) for row in rows)]
    cells = [
        [*keys, *costs, *(name.split("/")[1] for name in scores)],
        [*("" for _ in [*keys, *costs]), *(name.split("/")[2] for name in scores)],
        *(
            [
                *(row[key] for key in keys),
                *(_number(row[key]) for key in costs),
                *(_number(row[name]) + seen_beside(row, name) for name in scores),
            ]
            for row in rows
        ),
    ]
    yield from aligned(cells)
    if any(OVERLAP in cell for line in cells for cell in line):
        yield OVERLAP_MEANS


def headline_table(found: Iterable["Headline"]) -> Iterator[str]:
    """Perplexity on held-out text before and after each training run, beside that of a unigram model."""
    cells = [
        [
            line.run,
            f"{line.before:,.1f} (step {line.first_step})",
            f"{line.after:,.1f} (step {line.last_step})",
            f"{line.unigram:,.1f}" if line.unigram is not None else "–",
            f"{line.bits_before:.3f} → {line.bits_after:.3f}",
        ]
        for line in found
    ]
    if cells:
        yield from aligned([["held-out perplexity a token", "before", "after", "unigram model", "bits a byte"], *cells])


def aligned(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table whose columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _telling(row: Row, preferred: Sequence[str]) -> list[str]:
    """Columns shown: the most telling of each task, for perplexity three."""
    from pamp_pipelines.evaluation.frames import CONTAMINATION, CUT

    tasks: dict[str, dict[str, str]] = {}
    for column in row:
        if column.count("/") == 2:
            task, _, metric = column.rpartition("/")
            if metric not in (CONTAMINATION, CUT):
                tasks.setdefault(task, {})[metric] = column
    rank = {metric: place for place, metric in enumerate(preferred)}
    shown: list[str] = []
    for metrics in tasks.values():
        telling = [metric for metric in _ALWAYS if metric in metrics and "token_perplexity" in metrics]
        telling = telling or [min(metrics, key=lambda metric: rank.get(metric, len(rank)))]
        shown += [metrics[metric] for metric in telling]
    return shown


def _number(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
