"""All scores of a lake as tables: a long one, a row per score, and a wide one, a row per checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.scores import COLUMNS, SCORES, read_scores
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, event

if TYPE_CHECKING:
    import pandas as pd

CHECKPOINT = ["model", "training_config", "version", "step", "tokens_seen"]
"""Columns that name a checkpoint, in the order of the tables."""
EXTRA = ["score_id", "created"]
"""What the long table adds: the artifact that holds the score, and when it was made."""

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


def long_table(artifacts: Sequence[Artifact], on_event: OnEvent) -> pd.DataFrame:
    """Rows of all scores files, ordered by checkpoint, evaluation, task and metric.

    A file that cannot be read is left out with a ``warning`` event: one damaged score must not hide the others.
    """
    import pandas as pd

    rows = []
    for artifact in artifacts:
        try:
            found = read_scores(artifact.path / SCORES)
        except InputError as error:
            on_event(event("warning", message=str(error)))
            continue
        rows += [{**row, "score_id": artifact.id, "created": artifact.manifest.created} for row in found]
    integers = {name: "Int64" for name, (kind, _) in COLUMNS.items() if kind == "int64"}
    table = pd.DataFrame(rows, columns=[*COLUMNS, *EXTRA]).astype(integers)
    return table.sort_values([*CHECKPOINT[:4], "evaluation", "task", "metric"], ignore_index=True)


def wide_table(long: pd.DataFrame) -> pd.DataFrame:
    """One row per checkpoint; a column ``evaluation/task/metric`` per score, shortened where task says no more."""
    table = long.assign(column=[column_name(*names) for names in long[["evaluation", "task", "metric"]].to_numpy()])
    keys = table[CHECKPOINT].astype(object).where(table[CHECKPOINT].notna(), None)
    order = list(dict.fromkeys(table["column"]))
    wide = table.assign(**keys).pivot_table(
        index=CHECKPOINT, columns="column", values="value", aggfunc="last", dropna=False, observed=True
    )
    wide = wide.dropna(how="all").reindex(columns=order).reset_index()
    wide.columns.name = None
    return wide


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
