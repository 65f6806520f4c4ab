"""What training did to perplexity: a line per run, its first scored checkpoint beside its last and a unigram model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

METRICS = ("token_perplexity", "bits_per_byte")
UNIGRAM = "unigram_perplexity"


@dataclass(frozen=True)
class Headline:
    """Perplexity on one task before and after a training run.

    Attributes:
        run: ``model · training config``, with the version from the second on.
        task: the task that was scored.
        before, after: perplexity a token at ``first_step`` and ``last_step``; the same where one checkpoint is scored.
        bits_before, bits_after: bits per byte there, which models of different tokenizers can be compared by.
        unigram: perplexity of token frequencies on the same tokens; None where the training text is unknown.
    """

    run: str
    task: str
    first_step: int
    last_step: int
    before: float
    after: float
    bits_before: float
    bits_after: float
    unigram: float | None


def headlines(rows: Iterable[Mapping[Any, Any]]) -> list[Headline]:
    """One for each run and perplexity task, in the order of ``rows``.

    Args:
        rows: scores as ``scores.read_scores`` and ``leaderboard.parquet`` have them.
    """
    by_run: dict[tuple[Any, ...], dict[int, dict[str, float]]] = {}
    for row in rows:
        if row["metric"] in (*METRICS, UNIGRAM) and row["step"] is not None and row["value"] is not None:
            run = (row["model"], row["training_config"], row["version"], row["evaluation"], row["task"])
            by_run.setdefault(run, {}).setdefault(int(row["step"]), {})[row["metric"]] = float(row["value"])
    found = []
    for (model, config, version, _, task), steps in by_run.items():
        steps = {step: of_step for step, of_step in steps.items() if all(metric in of_step for metric in METRICS)}
        if not steps:
            continue
        first, last = min(steps), max(steps)
        suffix = f" · v{int(version)}" if version and version > 1 else ""
        found.append(
            Headline(
                run=f"{model} · {config}{suffix}",
                task=task,
                first_step=first,
                last_step=last,
                before=steps[first]["token_perplexity"],
                after=steps[last]["token_perplexity"],
                bits_before=steps[first]["bits_per_byte"],
                bits_after=steps[last]["bits_per_byte"],
                unigram=steps[last].get(UNIGRAM),
            )
        )
    return found
