"""``metrics.jsonl``: one JSON object per logged iteration, written by the worker's ``telemetry``, read here.

A loss that is not finite is ``null``. Iteration 0, the imported weights before any step, has a validation loss only.
"""

import json
from pathlib import Path
from typing import Any

from pamp_pipelines.lake.atomic import write_text

Metrics = list[dict[str, Any]]


def read_metrics(path: Path) -> Metrics:
    """All whole lines; one that a killed writer left unfinished is skipped."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    metrics = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("iteration"), int):
            metrics.append(entry)
    return metrics


def cut_metrics(path: Path, iteration: int | None) -> None:
    """Drop what lies after ``iteration``, for None everything: a run that goes on from there writes it again."""
    if not path.exists():
        return
    last = -1 if iteration is None else iteration
    kept = [entry for entry in read_metrics(path) if entry["iteration"] <= last]
    write_text(path, "".join(json.dumps(entry) + "\n" for entry in kept))
