"""Metadata of single assets that people look at first: sample rows, curves, score tables."""

import csv
import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from pamp_pipelines.evaluation.leaderboard import loss_curves
from pamp_pipelines.evaluation.scores import COLUMNS, SCORES, read_scores
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.store import CheckpointKey
from pamp_pipelines.orchestration.metadata import MAX_PICTURE_BYTES, picture
from pamp_pipelines.orchestration.values import table

_SAMPLES = 5
_SAMPLE_CHARACTERS = 300
_DAGSTER_TYPES = {"string": "string", "int64": "int", "float64": "float", "bool": "bool"}


def details(artifact: Artifact) -> dict[str, Any]:
    """What is shown of this kind of artifact besides what every artifact has."""
    match artifact.kind:
        case "raw_corpus":
            return corpus_details(artifact)
        case "pretrained_checkpoint":
            return training_details(artifact)
        case "eval_scores":
            return score_details(artifact)
        case "leaderboard":
            return leaderboard_details(artifact)
        case _:
            return {}


def corpus_details(artifact: Artifact) -> dict[str, Any]:
    """The first documents of a corpus."""
    lines = (artifact.path / "sample.jsonl").read_text(encoding="utf-8").splitlines()[:_SAMPLES]
    rows = [json.loads(line) for line in lines]
    return {"samples": table([{**row, "text": row["text"][:_SAMPLE_CHARACTERS]} for row in rows])}


def training_details(artifact: Artifact) -> dict[str, Any]:
    """The version that it follows, and training and validation loss against tokens."""
    before = artifact.manifest.declaration.get("follows") or {}
    lineage = {"follows": f"{before['version']} (id {before['id'][:12]})"} if before else {}
    from pamp_pipelines.evaluation.chart import loss_chart

    curves = loss_curves(artifact.path)
    if not curves:
        return lineage
    version, config, model = reversed(artifact.path.parts[-3:])
    # one below the other: Dagster's dialog cuts off what is wider than some 1,000 pixels
    drawn = loss_chart({f"{model} · {config} {version}": curves}, columns=1)
    return lineage | ({"loss_curve": picture("loss curve", drawn)} if len(drawn) <= MAX_PICTURE_BYTES else {})


def score_details(artifact: Artifact) -> dict[str, Any]:
    """Each score as a number of its own, which the UI plots over checkpoints, and all of them as a table."""
    rows = read_scores(artifact.path / SCORES)
    shown = ("task", "metric", "value", "stderr", "n", "limit")
    return {
        **{f"{row['task']}/{row['metric']}": float(row["value"]) for row in rows if row["value"] is not None},
        "scores": table([{name: row[name] for name in shown} for row in rows]),
        "dagster/row_count": len(rows),
    }


def leaderboard_details(artifact: Artifact) -> dict[str, Any]:
    """The table with a row a checkpoint and the telling metric of each task; the report has them all."""
    from pamp_pipelines.evaluation.frames import COST, PREFERRED, seen_beside

    file = artifact.path / "leaderboard.csv"
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    if not rows:
        return {}
    scores = telling([name for name in rows[0] if "/" in name], PREFERRED)
    return {
        "leaderboard": table(
            [
                {
                    "checkpoint": _checkpoint(row),
                    "tokens": _short(row["tokens_seen"]),
                    **{name: _short(row[name]) for name in COST if row.get(name)},
                    **{title: _short(row[name]) + seen_beside(row, name) for name, title in scores.items()},
                }
                for row in rows
            ]
        )
    }


def telling(columns: Sequence[str], preferred: Sequence[str]) -> dict[str, str]:
    """One column of each task, and its short title.

    Args:
        columns: score columns of leaderboard.csv, named ``evaluation/task/metric``.
        preferred: metrics, the most telling first.
    """
    shown = {}
    for task in dict.fromkeys(name.rpartition("/")[0] for name in columns):
        metrics = [name.rpartition("/")[2] for name in columns if name.rpartition("/")[0] == task]
        best = next((metric for metric in preferred if metric in metrics), metrics[0])
        shown[f"{task}/{best}"] = f"{task.partition('/')[0]}: {best}"
    return shown


def _checkpoint(row: Mapping[str, str]) -> str:
    """The partition key of a row; only the model for a plain directory that was scored."""
    if not row["version"] or not row["step"]:
        return row["model"]
    return str(CheckpointKey(row["model"], row["training_config"], int(float(row["version"])), int(float(row["step"]))))


def _short(text: str) -> str:
    """A number as people read it in a table; the file has all its digits."""
    try:
        return text if text.lstrip("-").isdigit() else f"{float(text):.5g}"
    except ValueError:
        return text


def scores_schema() -> dg.TableSchema:
    """Columns of scores.parquet and leaderboard.parquet."""
    return dg.TableSchema(
        [
            dg.TableColumn(name, type=_DAGSTER_TYPES.get(kind, kind), description=text)
            for name, (kind, text) in COLUMNS.items()
        ]
    )
