"""Differences between two checkpoints with confidence intervals, paired by sample where both scored the same rows.

A metric is a smooth function of sums over samples, so each sample has an influence on it (first-order term of the
function's expansion; Hampel et al., Robust Statistics, 1986, section 2.1), and the standard error of the metric is the
root of n / (n - 1) times the sum of squared influences. The influence on a difference is the difference of influences:
what makes a row hard for both models cancels, and the interval is narrower than that of two separate scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.frames import cut
from pamp_pipelines.evaluation.scores import SCORES, read_scores
from pamp_pipelines.evaluation.spec import KIND
from pamp_pipelines.evaluation.values import VALUES, Values, read_values
from pamp_pipelines.lake.artifact import Artifact, read_artifact
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.manifest import MANIFEST
from pamp_pipelines.lake.store import CheckpointKey, Lake

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Score = tuple[str, str, str]
"""Evaluation, task, metric."""


@dataclass(frozen=True)
class Difference:
    """How a score changed from ``a`` to ``b``.

    Attributes:
        cut: how much of the rows a limit left, such as ``24 of 96``; None where all were scored.
        stderr: of the difference; None where a score has none.
        paired: whether it is over the same samples.
        low, high: confidence interval of ``b - a``.
        verdict: ``better`` or ``worse`` where the interval excludes zero, ``unclear`` where it does not; empty for
            a metric without a direction.
    """

    evaluation: str
    task: str
    metric: str
    a: float
    b: float
    n: int
    cut: str | None
    paired: bool
    difference: float
    stderr: float | None
    low: float | None
    high: float | None
    verdict: str


def compare(
    a: Sequence[Artifact], b: Sequence[Artifact], confidence: float = 0.95
) -> tuple[list[Difference], list[str]]:
    """Every score that both have.

    Args:
        a, b: ``eval_scores`` artifacts of the two.
        confidence: of the intervals, normal approximation.

    Returns:
        The differences, and a sentence for each score that cannot be compared.
    """
    first, second = table(a), table(b)
    values = {name: contributed(scores) for name, scores in (("a", a), ("b", b))}
    differences, left_out = [], []
    for score in dict.fromkeys((*first, *second)):
        name = " ".join(score)
        if score not in first or score not in second:
            left_out.append(f"{name}: only scored for {'A' if score in first else 'B'}")
            continue
        left, right = first[score], second[score]
        if reason := _incomparable(left, right):
            left_out.append(f"{name}: {reason}")
            continue
        pair = values["a"].get(score), values["b"].get(score)
        differences.append(_difference(score, left, right, pair, confidence))
    return differences, left_out


def table(artifacts: Iterable[Artifact]) -> dict[Score, dict[str, Any]]:
    """Rows of the score tables; a unigram model's perplexity is no score of a checkpoint and left out."""
    return {
        (row["evaluation"], row["task"], row["metric"]): row
        for artifact in artifacts
        for row in read_scores(artifact.path / SCORES)
        if row["metric"] != "unigram_perplexity"
    }


def contributed(artifacts: Iterable[Artifact]) -> dict[Score, Values]:
    """What each sample contributed, by score."""
    return {
        (artifact.path.name, *name): values
        for artifact in artifacts
        for name, values in read_values(artifact.path / VALUES).items()
    }


def influences(metric: str, values: Values) -> npt.NDArray[np.float64]:
    """Influence of each sample on the metric, shape [samples]."""
    import numpy as np

    if values.weights is None:
        return (values.values - values.values.mean()) / len(values.values)
    total = values.weights.sum()
    ratio = values.values.sum() / total
    on_ratio = (values.values - ratio * values.weights) / total
    if metric.startswith("bits_per_byte"):
        return -on_ratio / math.log(2)
    return -float(np.exp(-ratio)) * on_ratio


def paired_error(metric: str, a: Values, b: Values) -> float | None:
    """Standard error of ``b - a`` over the same samples; None where they are not the same or fewer than two."""
    import numpy as np

    count = len(a.samples)
    weighted = (a.weights is None, b.weights is None)
    if a.samples != b.samples or count < 2 or weighted[0] != weighted[1]:
        return None
    influence = influences(metric, b) - influences(metric, a)
    return float(np.sqrt(count / (count - 1) * (influence**2).sum()))


def _incomparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Why two scores of one name do not measure the same; empty where they do."""
    for column in ("task_sha256", "data_sha256", "num_fewshot", "limit", "task_version"):
        if a[column] != b[column]:
            return f"{column} differs: {str(a[column])[:16]} against {str(b[column])[:16]}"
    if None in (a["value"], b["value"]):
        return "one of the scores is no number"
    return ""


def _difference(
    score: Score,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    values: tuple[Values | None, Values | None],
    confidence: float,
) -> Difference:
    left, right = values
    error = paired_error(score[2], left, right) if left is not None and right is not None else None
    paired = error is not None
    if error is None and None not in (a["stderr"], b["stderr"]):
        error = math.hypot(a["stderr"], b["stderr"])
    difference = b["value"] - a["value"]
    half = None if error is None else NormalDist().inv_cdf(0.5 + confidence / 2) * error
    verdict = ""
    if half is not None and b["higher_is_better"] is not None:
        clear = abs(difference) > half
        verdict = ("better" if (difference > 0) == b["higher_is_better"] else "worse") if clear else "unclear"
    return Difference(
        *score,
        a=a["value"],
        b=b["value"],
        n=b["n"],
        cut=cut(b),
        paired=paired,
        difference=difference,
        stderr=error,
        low=None if half is None else difference - half,
        high=None if half is None else difference + half,
        verdict=verdict,
    )


def scores_of(target: str, lake: Lake | None) -> list[Artifact]:
    """Scores of what a person names: a folder of scores (or of several), or a checkpoint's key.

    Raises:
        InputError: there are none.
    """
    path = Path(target)
    if path.is_dir():
        folders = [path] if (path / MANIFEST).is_file() else sorted(f.parent for f in path.glob(f"*/{MANIFEST}"))
    elif lake is not None:
        key = CheckpointKey.parse(target)
        folders = sorted(f.parent for f in lake.scores_dir(key, "").glob(f"*/{MANIFEST}"))
    else:
        raise InputError(f"{target!r}: no such folder; a checkpoint key needs a project.")
    found = [
        artifact for folder in folders if (artifact := require_intact_artifact(read_artifact(folder))).kind == KIND
    ]
    if not found:
        raise InputError(f"{target!r}: no scores there; `pamp evaluate {target}` makes them.")
    return found
