"""The leaderboard on a terminal: one metric a task; the report has them all."""

from collections.abc import Iterator, Mapping, Sequence

Row = Mapping[str, str]
"""A line of ``leaderboard.csv``: column to text."""

_KEYS = ("model", "training_config", "version", "step", "tokens_seen")


def table(rows: Sequence[Row], preferred: Sequence[str]) -> Iterator[str]:
    """Aligned columns with two lines of heading.

    Args:
        rows: lines of the table; score columns are named ``evaluation/task/metric``.
        preferred: metrics, the most telling first.
    """
    if not rows:
        return
    scores = _one_metric_a_task(rows[0], preferred)
    keys = [key for key in _KEYS if key in rows[0]]
    cells = [
        [*keys, *(name.split("/")[1] for name in scores)],
        [*("" for _ in keys), *(name.split("/")[2] for name in scores)],
        *([*(row[key] for key in keys), *(_number(row[name]) for name in scores)] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _one_metric_a_task(row: Row, preferred: Sequence[str]) -> list[str]:
    tasks: dict[str, list[str]] = {}
    for column in row:
        if column.count("/") == 2:
            tasks.setdefault(column.rpartition("/")[0], []).append(column)
    rank = {metric: place for place, metric in enumerate(preferred)}
    return [min(columns, key=lambda c: rank.get(c.rpartition("/")[2], len(rank))) for columns in tasks.values()]


def _number(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
