"""All scores of a lake as tables: a long one, a row per score, and a wide one, a row per checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.chart import given, series_name
from pamp_pipelines.evaluation.costs import Cost
from pamp_pipelines.evaluation.scores import COLUMNS, SCORES, read_scores
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, event

if TYPE_CHECKING:
    import pandas as pd

CHECKPOINT = ["model", "training_config", "version", "step", "tokens_seen"]
"""Columns that name a checkpoint, in the order of the tables."""
COST = ["gpu_hours", "cost"]
"""Training until the checkpoint: hours of all processes, and their price; empty where unknown."""
EXTRA = ["score_id", "created", *COST]
"""What the long table adds: the artifact that holds the score, when it was made, what its checkpoint cost."""
CONTAMINATION, CUT = "contamination", "cut"
"""Columns of the wide table beside the scores of a task: see ``wide_table``."""
OVERLAP = "share a 13-gram"
"""What a share of contamination is a share of, as shown beside a score: scored rows, by ``OVERLAP_MEANS``."""
OVERLAP_MEANS = (
    f"“36% {OVERLAP}”: of the documents (rows) scored, the part in which any 13 tokens in a row stand in the training "
    "text, too. In a long document a common phrase is enough; documents that were seen whole are another check."
)

PREFERRED = (
    "bits_per_byte",
    "word_perplexity",
    "exact_match",
    "exact_match,flexible-extract",
    "acc_norm",
    "acc",
    "perplexity",
)
"""Metric that stands for a task in pictures, the first that it has."""


def long_table(artifacts: Sequence[Artifact], on_event: OnEvent, costs: Sequence[Cost] = ()) -> pd.DataFrame:
    """Rows of all scores files, ordered by checkpoint, evaluation, task and metric.

    A file that cannot be read is left out with a ``warning`` event: one damaged score must not hide the others.
    """
    import pandas as pd

    by_run = {cost.run: cost for cost in costs}
    rows = []
    for artifact in artifacts:
        try:
            found = read_scores(artifact.path / SCORES)
        except InputError as error:
            on_event(event("warning", message=str(error)))
            continue
        made = {"score_id": artifact.id, "created": artifact.manifest.created}
        rows += [{**row, **made, **_spent(row, by_run)} for row in found]
    integers = {name: "Int64" for name, (kind, _) in COLUMNS.items() if kind == "int64"}
    integers |= dict.fromkeys(COST, "float64")
    table = pd.DataFrame(rows, columns=[*COLUMNS, *EXTRA]).astype(integers)
    return table.sort_values([*CHECKPOINT[:4], "evaluation", "task", "metric"], ignore_index=True)


def _spent(row: Mapping[str, Any], by_run: Mapping[str, Cost]) -> dict[str, float | None]:
    cost = by_run.get(series_name(row))
    hours, price = cost.at(row["step"]) if cost is not None and given(row["step"]) else (None, None)
    return dict(zip(COST, (hours, price), strict=True))


def wide_table(long: pd.DataFrame) -> pd.DataFrame:
    """One row per checkpoint: what it cost, and a column ``evaluation/task/metric`` per score.

    After the scores of a task come ``evaluation/task/contamination`` where that is known, and ``evaluation/task/cut``,
    such as ``24 of 96``, where a limit cut what was scored.
    """
    import pandas as pd

    keys = [*CHECKPOINT, *COST]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    columns: dict[tuple[str, str], dict[str, None]] = {}
    for score in long.astype(object).where(long.notna(), None).to_dict("records"):
        evaluation, task = score["evaluation"], score["task"]
        row = rows.setdefault(tuple(score[key] for key in CHECKPOINT), {key: score[key] for key in keys})
        of_task = columns.setdefault((evaluation, task), {})
        beside = {CONTAMINATION: score[CONTAMINATION], CUT: cut(score)}
        for metric, value in ((score["metric"], score["value"]), *beside.items()):
            if metric not in beside or value is not None:
                row[column_name(evaluation, task, metric)] = value
                of_task[metric] = None
    ordered = [
        column_name(evaluation, task, metric)
        for (evaluation, task), metrics in sorted(columns.items())
        for metric in sorted(metrics, key=(CONTAMINATION, CUT).__contains__)  # they come last
    ]
    return pd.DataFrame(list(rows.values()), columns=[*keys, *ordered], dtype=object)


def cut(row: Mapping[Any, Any]) -> str | None:
    """How much of a task a limit left, such as ``24 of 96``; None where all was scored."""
    known = given(row["limit"]) and given(row["n"]) and given(row["n_available"])
    return f"{int(row['n'])} of {int(row['n_available'])}" if known and row["n"] < row["n_available"] else None


def seen_beside(row: Mapping[str, str], column: str) -> str:
    """What a line of leaderboard.csv says of limit and contamination, to stand beside a score of it."""
    task = column.rpartition("/")[0]
    share = row.get(f"{task}/{CONTAMINATION}")
    notes = [row.get(f"{task}/{CUT}"), f"{float(share):.0%} {OVERLAP}" if share else None]
    return f" ({', '.join(filter(None, notes))})" if row[column] and any(notes) else ""


def column_name(evaluation: str, task: str, metric: str) -> str:
    return f"{evaluation}/{task}/{metric}"


def primary(long: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(evaluation, task, metric) worth a picture: one metric per task."""
    chosen = []
    for (evaluation, task), rows in long.groupby(["evaluation", "task"], sort=True):
        metrics = list(dict.fromkeys(rows["metric"]))
        best = next((name for name in PREFERRED if name in metrics), metrics[0])
        chosen.append((str(evaluation), str(task), best))
    return chosen
