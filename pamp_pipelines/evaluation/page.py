"""The HTML page over all scores: one file, no network, readable without scripts."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamp_pipelines.evaluation.chart import count, given, series_name
from pamp_pipelines.evaluation.costs import Cost
from pamp_pipelines.evaluation.frames import CHECKPOINT, OVERLAP, OVERLAP_MEANS, cut, primary
from pamp_pipelines.evaluation.headline import UNIGRAM, headlines
from pamp_pipelines.evaluation.pairs import pairs
from pamp_pipelines.evaluation.scores import SAMPLES
from pamp_pipelines.evaluation.trace import Ancestor, Index, walk
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.manifest import MANIFEST, Manifest

if TYPE_CHECKING:
    import pandas as pd

TEMPLATES = Path(__file__).parent / "templates"
FACTS = (
    "licence",
    "seed",
    "data_seed",
    "sha256",
    "eod",
    "vocab_size",
    "sequence_length",
    "iterations",
    "precision",
    "lr",
)
"""Fields of a declaration that identify what was done, wherever in it they stand."""
EXCERPT = 600  # characters of a prompt or answer that are shown


@dataclass(frozen=True)
class Cell:
    """A score as shown: value, standard error, what cut it, change since the first checkpoint of the run."""

    value: float
    text: str
    error: str
    stderr: float | None
    limit: str
    seen: str
    """Part of the scored documents that share 13 tokens in a row with the training text."""
    change: str
    verdict: str
    """``better``, ``worse``, ``noise`` or empty."""
    best: bool


@dataclass(frozen=True)
class Column:
    evaluation: str
    task: str
    metric: str
    arrow: str
    primary: bool


def render(
    long: pd.DataFrame,
    artifacts: Sequence[Artifact],
    index: Index,
    pictures: Mapping[str, bytes],
    costs: Sequence[Cost] = (),
) -> str:
    """The page.

    Args:
        long: the long table of scores.
        artifacts: the scores artifacts, for samples and lineage.
        index: manifests of the lake.
        pictures: ``scores`` and ``losses`` as PNG; absent ones are left out.
        costs: what the training runs cost.
    """
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    columns = table_columns(long)
    rows = list(table_rows(long, columns))
    by_id = {artifact.id: artifact for artifact in artifacts}
    return environment.get_template("leaderboard.html.j2").render(
        columns=columns,
        headlines=headlines(long.astype(object).where(long.notna(), None).to_dict("records")),
        overlap_means=OVERLAP_MEANS,
        number=number,
        signed=signed,
        count=count,
        pairs=pairs(long, by_id) if len(long) else [],
        costs=costs,
        priced=any(cost.price is not None for cost in costs),
        groups=_groups(columns),
        rows=rows,
        origins=list(origins(long, by_id, index)),
        examples=list(examples(long, by_id)),
        pictures={name: f"data:image/png;base64,{base64.b64encode(png).decode()}" for name, png in pictures.items()},
        scores=len(long),
        models=long["model"].nunique(),
        newest=str(long["created"].max()) if len(long) else "",
        commits=sorted({str(c)[:12] for c in long["code_commit"].dropna()}),
    )


def table_columns(long: pd.DataFrame) -> list[Column]:
    """Columns by evaluation; the metric that stands for a task comes first."""
    leading = set(primary(long))
    better: dict[tuple[str, str, str], Any] = {}
    for row in long[["evaluation", "task", "metric", "higher_is_better"]].to_dict("records"):
        name = (str(row["evaluation"]), str(row["task"]), str(row["metric"]))
        if given(row["higher_is_better"]) or name not in better:
            better[name] = row["higher_is_better"]
    ordered = sorted(better, key=lambda name: (name[0], name[1], name not in leading, name[2]))
    arrows = {name: ("↑" if value else "↓") if given(value) else "" for name, value in better.items()}
    return [Column(*name, arrows[name], name in leading) for name in ordered]


def table_rows(long: pd.DataFrame, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """A row per checkpoint with a Cell (or None) per column."""
    best = _best(long, columns)
    first: dict[tuple[str, Column], Mapping[Any, Any]] = {}
    for _, scores in long.groupby(CHECKPOINT, dropna=False, sort=True):
        records = scores.to_dict("records")
        head = records[0]
        name = series_name(head)
        by_name = {(str(r["evaluation"]), str(r["task"]), str(r["metric"])): r for r in records}
        cells: list[Cell | None] = []
        for column in columns:
            row = by_name.get((column.evaluation, column.task, column.metric))
            if row is None:
                cells.append(None)
                continue
            start = first.setdefault((name, column), row)
            cells.append(_cell(row, start, best.get(column)))
        yield {
            "series": name,
            "model": head["model"],
            "config": head["training_config"] if given(head["training_config"]) else "",
            "version": int(head["version"]) if given(head["version"]) else None,
            "step": int(head["step"]) if given(head["step"]) else None,
            "tokens": count(float(head["tokens_seen"])) if given(head["tokens_seen"]) else "",
            "tokens_seen": int(head["tokens_seen"]) if given(head["tokens_seen"]) else -1,
            "hours": float(head["gpu_hours"]) if given(head["gpu_hours"]) else None,
            "cost": float(head["cost"]) if given(head["cost"]) else None,
            "cells": cells,
        }


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """(evaluation, number of its columns) for the upper line of the header."""
    groups: dict[str, int] = {}
    for column in columns:
        groups[column.evaluation] = groups.get(column.evaluation, 0) + 1
    return list(groups.items())


def _best(long: pd.DataFrame, columns: Sequence[Column]) -> dict[Column, float]:
    """The best value of each column that has a direction and more than one value."""
    by_name = {(column.evaluation, column.task, column.metric): column for column in columns if column.arrow}
    best = {}
    for name, values in long.groupby(["evaluation", "task", "metric"])["value"]:
        column = by_name.get(tuple(map(str, name)))  # type: ignore[arg-type]
        if column is not None and values.nunique() > 1:
            best[column] = float(values.max() if column.arrow == "↑" else values.min())
    return best


def _cell(row: Mapping[Any, Any], start: Mapping[Any, Any], best: float | None) -> Cell:
    value = float(row["value"])
    error = float(row["stderr"]) if given(row["stderr"]) else None
    change, verdict = _change(row, start)
    return Cell(
        value=value,
        text=number(value),
        error=f"± {two_digits(error)}" if error is not None else "",
        stderr=error,
        seen=f"{float(row['contamination']):.0%} {OVERLAP}"
        if given(row["contamination"]) and row["metric"] != UNIGRAM
        else "",
        limit=cut(row) or "",
        change=change,
        verdict=verdict,
        best=best is not None and math.isclose(value, best, rel_tol=1e-12),
    )


def _change(row: Mapping[Any, Any], start: Mapping[Any, Any]) -> tuple[str, str]:
    """Difference to the first checkpoint of the run, and whether it is more than two standard errors of it."""
    if row is start or row["score_id"] == start["score_id"]:
        return "", ""
    difference = float(row["value"]) - float(start["value"])
    if difference == 0:
        return "", ""
    text = f"{difference / float(start['value']):+.1%}" if abs(float(start["value"])) > 1 else f"{difference:+.3g}"
    errors = [float(r["stderr"]) for r in (row, start) if given(r["stderr"])]
    if abs(difference) <= 2 * math.hypot(*errors):
        return text, "noise"
    if not given(row["higher_is_better"]):
        return text, ""
    return text, "better" if (difference > 0) == bool(row["higher_is_better"]) else "worse"


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3e}"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 1
    return f"{value:,.{min(digits, 4)}f}"


def signed(value: float | None) -> str:
    """Four significant digits with a sign."""
    if value is None:
        return "–"
    return f"{value:+.4g}" if value else "0"


def two_digits(value: float) -> str:
    """Two significant digits and never an exponent, as standard errors are written."""
    if not math.isfinite(value):
        return str(value)
    if value <= 0:
        return "0"
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def origins(long: pd.DataFrame, artifacts: Mapping[str, Artifact], index: Index) -> Iterator[dict[str, Any]]:
    """By checkpoint: how each score was taken, and every artifact behind it."""
    for _, scores in long.groupby(CHECKPOINT, dropna=False, sort=True):
        head = scores.iloc[0].to_dict()
        step = f", step {int(head['step'])}" if given(head["step"]) else ""
        seen: dict[str, dict[str, Any]] = {}
        for id in dict.fromkeys(scores["score_id"]):
            artifact = artifacts[id]
            for ancestor in walk(artifact.manifest, artifact.path / MANIFEST, index):
                seen.setdefault(
                    ancestor.ref.id,
                    {
                        "kind": ancestor.ref.kind,
                        "id": ancestor.ref.id,
                        "content": ancestor.ref.content,
                        "state": _state(ancestor),
                        "manifest": ancestor.manifest,
                        "facts": facts(ancestor.manifest) if ancestor.manifest and ancestor.depth else {},
                    },
                )
        settings = [_setting(rows.iloc[0].to_dict()) for _, rows in scores.groupby(["evaluation", "task"], sort=True)]
        verdicts = [
            {"where": f"{link['kind']} {check.name}", "passed": check.passed, "what": check.description}
            for link in seen.values()
            if link["manifest"]
            for check in link["manifest"].checks
        ]
        name = series_name(head) + step
        yield {"name": name, "settings": settings, "chain": list(seen.values()), "verdicts": verdicts}


def _state(ancestor: Ancestor) -> str:
    if ancestor.path is None:
        return "not in this lake"
    return "changed" if ancestor.changed else "evicted" if ancestor.evicted else ""


def _setting(row: Mapping[Any, Any]) -> dict[str, str]:
    def text(value: Any, digits: int = 0) -> str:
        if not given(value):
            return "–"
        return str(value)[:digits] if digits else str(value)

    return {
        "evaluation": text(row["evaluation"]),
        "task": f"{text(row['task'])} {text(row['task_version'])}",
        "rows": f"{text(row['n'])} of {text(row['n_available'])}",
        "shots": text(row["num_fewshot"]),
        "prompts": text(row["prompt_sha256"], 12),
        "data": text(row["data_sha256"], 12),
        "prefix": f"{text(row['prefix_token'])} ({text(row['prefix_id'])})",
        "run on": f"{text(row['device'])}, {text(row['dtype'])}, batch {text(row['batch_size'])}",
        "seconds": number(float(row["seconds"])),
        "lm-eval": text(row["lm_eval"]),
        "code": text(row["code_commit"], 12),
    }


def facts(manifest: Manifest) -> dict[str, str]:
    """What identifies a stage's work, from its declaration: ``tokenizer.sha256``, ``shakespeare.licence`` …"""
    found: dict[str, str] = {}

    def collect(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                name = f"{path}.{key}" if path else str(key)
                if key in FACTS and not isinstance(item, Mapping | list):
                    if item is not None:
                        found[name] = str(item)
                else:
                    collect(item, name)

    collect(manifest.declaration, "")
    return dict(list(found.items())[:12])


def examples(long: pd.DataFrame, artifacts: Mapping[str, Artifact]) -> Iterator[dict[str, Any]]:
    """For each generated task of each run's last checkpoint: the first right answer and the first wrong one."""
    generated = long[long.metric.str.startswith("exact_match")]
    for _, rows in generated.groupby(["model", "training_config", "version", "evaluation", "task"], dropna=False):
        row = rows.sort_values("step").iloc[-1].to_dict()
        metric = str(row["metric"]).partition(",")[0]
        shown: dict[str, dict[str, str]] = {}
        try:
            with (artifacts[row["score_id"]].path / SAMPLES).open(encoding="utf-8") as lines:
                for line in lines:
                    sample = json.loads(line)
                    if sample["task"] != row["task"] or metric not in sample:
                        continue
                    verdict = "right" if sample[metric] else "wrong"
                    if verdict not in shown:
                        shown[verdict] = _sample(sample)
                    if len(shown) == 2:
                        break
        except (OSError, ValueError, KeyError):
            continue  # samples are an extra; the scores stand without them
        if shown:
            step = f", step {int(row['step'])}" if given(row["step"]) else ""
            yield {"name": series_name(row) + step, "task": row["task"], "shown": shown}


def _sample(sample: Mapping[str, Any]) -> dict[str, str]:
    doc = sample.get("doc") or {}
    asked = doc.get("problem") or doc.get("question") or sample["arguments"][0][0][-EXCERPT:]
    answer = sample["filtered_resps"][0]
    return {"asked": str(asked)[:EXCERPT], "answer": str(answer)[:EXCERPT], "target": str(sample["target"])[:EXCERPT]}
