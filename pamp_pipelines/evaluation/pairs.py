"""Which checkpoints the page compares: each run's first with its last, and the runs' last with each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.chart import given, series_name
from pamp_pipelines.evaluation.compare import Difference, compare
from pamp_pipelines.evaluation.frames import CHECKPOINT, primary
from pamp_pipelines.lake.artifact import Artifact

if TYPE_CHECKING:
    import pandas as pd

MOST_RUNS = 8
"""Runs compared with each other on the page; `pamp compare` compares any two checkpoints."""


@dataclass(frozen=True)
class Pair:
    """Two checkpoints by name and the differences of the metrics that stand for their tasks."""

    a: str
    b: str
    differences: list[Difference]


def pairs(long: pd.DataFrame, artifacts: Mapping[str, Artifact]) -> list[Pair]:
    """Pairs with at least one score in common.

    Args:
        long: the long table of scores.
        artifacts: the scores artifacts by id.
    """
    leading = set(primary(long)) | {(e, t, "token_perplexity") for e, t, m in primary(long) if m == "bits_per_byte"}
    checkpoints: dict[str, list[tuple[str, list[Artifact]]]] = {}
    for _, scores in long.groupby(CHECKPOINT, dropna=False, sort=True):
        head = scores.iloc[0].to_dict()
        of_checkpoint = [artifacts[id] for id in dict.fromkeys(scores["score_id"])]
        checkpoints.setdefault(series_name(head), []).append((_name(head), of_checkpoint))
    chosen = [(run[0], run[-1]) for run in checkpoints.values() if len(run) > 1]
    last = [run[-1] for run in checkpoints.values()]
    if len(last) <= MOST_RUNS:
        chosen += combinations(last, 2)
    found = []
    for (a, of_a), (b, of_b) in chosen:
        try:
            differences = [d for d in compare(of_a, of_b)[0] if (d.evaluation, d.task, d.metric) in leading]
        except InputError:
            continue  # a damaged file, which the table already leaves out with a warning
        if differences:
            found.append(Pair(a, b, differences))
    return found


def _name(row: Mapping[Any, Any]) -> str:
    return series_name(row) + (f", step {int(row['step'])}" if given(row["step"]) else "")
