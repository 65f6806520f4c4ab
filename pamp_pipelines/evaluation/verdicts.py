"""Verdicts on fresh scores, kept in their manifest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pamp_pipelines.evaluation.contamination import documents_in_training
from pamp_pipelines.evaluation.headline import UNIGRAM
from pamp_pipelines.evaluation.spec import EvaluateJob, EvaluationSpec
from pamp_pipelines.evaluation.unigram import unigram
from pamp_pipelines.lake.manifest import CheckResult

_BOTH = ("token_perplexity", UNIGRAM)


def finite_scores(rows: Sequence[dict[str, Any]]) -> CheckResult:
    """ERROR where a score is infinite or not a number: the weights or the arithmetic are broken."""
    broken = [f"{row['task']} {row['metric']} = {row['value']}" for row in rows if not math.isfinite(row["value"])]
    return CheckResult(
        name="scores_finite", passed=not broken, description="; ".join(broken) or "every score is a finite number"
    )


def extreme_scores(rows: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]]) -> list[CheckResult]:
    """WARN where a score between 0 and 1 is exactly one of them: more often a broken template than a fact."""
    extreme = [row for row in rows if row["higher_is_better"] and row["value"] in (0.0, 1.0)]
    suspicious = [f"{row['task']} {row['metric']} = {row['value']:g}" for row in extreme]
    tasks = {row["task"] for row in extreme}
    shown = [
        {"task": s["task"], "answer": str(s["filtered_resps"])[:300], "target": str(s["target"])[:300]}
        for s in ([s for s in samples if s["task"] in tasks] or samples)[:3]  # a group has none of its own
    ]
    return [
        CheckResult(
            name="score_not_extreme",
            passed=not suspicious,
            severity="WARN",
            description="; ".join(suspicious) or "no score is exactly 0 or 1",
            metadata={"samples": shown} if suspicious else {},
        )
    ]


def prompts_fit(cut: int, prompts: int) -> list[CheckResult]:
    """WARN where prompts were longer than the context, so that their beginning, the examples, was cut off."""
    if not prompts:
        return []
    advice = "; declare a larger `max_length`, fewer examples, or a smaller `max_gen_toks`" if cut else ""
    return [
        CheckResult(
            name="prompts_fit",
            passed=not cut,
            severity="WARN",
            description=f"{cut} of {prompts} prompts were longer than the context and lost their beginning{advice}",
            metadata={"prompts": prompts, "cut": cut},
        )
    ]


def unigram_rows(job: EvaluateJob, spec: EvaluationSpec, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row ``unigram_perplexity`` for each task that scored the run's held-out text, all of it."""
    baseline = job.subject.baseline
    tasks = {task.name for task in spec.tasks if baseline and baseline.rows and task.data == baseline.rows}
    scores = [
        row
        for row in rows
        if row["metric"] == "token_perplexity" and row["task"] in tasks and row["n"] == row["n_available"]
    ]
    if baseline is None or not scores:
        return []
    value = unigram(baseline.train, baseline.heldout, baseline.vocabulary, without=baseline.eod).perplexity
    return [{**row, "metric": UNIGRAM, "value": value, "stderr": None, "higher_is_better": None} for row in scores]


def beats_unigram(rows: Sequence[dict[str, Any]]) -> list[CheckResult]:
    """WARN where a checkpoint scores its run's held-out text no better than token frequencies would."""
    values = {metric: {r["task"]: r["value"] for r in rows if r["metric"] == metric} for metric in _BOTH}
    checks = []
    for task, frequencies in values[UNIGRAM].items():
        value = values["token_perplexity"][task]
        checks.append(
            CheckResult(
                name="beats_unigram",
                passed=value < frequencies,
                severity="WARN",
                description=f"perplexity {value:,.1f} a token; a unigram model has {frequencies:,.1f}",
                metadata={"token_perplexity": value, "unigram_perplexity": frequencies},
            )
        )
    return checks[:1]


def not_worse(spec: EvaluationSpec, rows: Sequence[dict[str, Any]]) -> list[CheckResult]:
    """WARN where a perplexity is above that of the checkpoint before by more than the declared factor."""
    if spec.predecessor is None:
        return []
    same = ("task", "metric", "data_sha256", "limit", "num_fewshot")
    before = {tuple(row.get(name) for name in same): row["value"] for row in spec.predecessor.rows}
    worse, compared = [], 0
    for row in rows:
        value = before.get(tuple(row[name] for name in same))
        if value is None or "perplexity" not in row["metric"] or row["metric"] == UNIGRAM:
            continue
        compared += 1
        if not row["value"] <= spec.worse_factor * value:  # NaN is worse, too
            worse.append(f"{row['task']} {row['metric']} {value:,.4g} -> {row['value']:,.4g}")
    if not compared:
        return []
    step, factor = spec.predecessor.step, f"{spec.worse_factor:g} times"
    return [
        CheckResult(
            name="not_worse_than_before",
            passed=not worse,
            severity="WARN",
            description="; ".join(worse) or f"no perplexity is above {factor} that of step {step}",
            metadata={"step": step, "factor": spec.worse_factor},
        )
    ]


def held_out_unseen(job: EvaluateJob, spec: EvaluationSpec, rows: Sequence[dict[str, Any]]) -> list[CheckResult]:
    """ERROR where a document that the run held out stands in its training shards, token for token.

    WARN where one of a corpus does that the run was not trained on: corpora may share texts.
    """
    baseline = job.subject.baseline
    if baseline is None:
        return []
    all_of_run = any(row["metric"] == UNIGRAM for row in rows)
    own = [prefix for prefix in baseline.heldout if all_of_run or prefix in spec.heldout]
    others = [prefix for prefix in spec.heldout if prefix not in baseline.heldout]
    if not own and not others:
        return []
    (seen, documents), (seen_other, other) = (documents_in_training(part, baseline.train) for part in (own, others))
    all, found = documents + other, seen + seen_other
    return [
        CheckResult(
            name="held_out_unseen",
            passed=not found,
            severity="ERROR" if seen or not found else "WARN",
            description=f"{found} of {all} held-out documents are in the training shards, by hash of their tokens",
            metadata={"documents": all, "in_training": found},
        )
    ]
