"""The leaderboard: every score of the lake in one table, one picture and one page.

It is derived, never edited: what it shows is what the scores artifacts and the training runs hold when it is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.costs import costs, hour_price
from pamp_pipelines.evaluation.headline import Headline, headlines
from pamp_pipelines.evaluation.spec import KIND as SCORES_KIND
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.integrity import find_intact
from pamp_pipelines.lake.manifest import artifact_id
from pamp_pipelines.lake.occupied import require_own_folder
from pamp_pipelines.lake.publish import lock, publish
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.training.job import read_job
from pamp_pipelines.training.metrics import read_metrics

KIND = "leaderboard"
STAGE_VERSION = 5
METRICS = "metrics.jsonl"
TABLE, WIDE, PAGE = "leaderboard.parquet", "leaderboard.csv", "index.html"


def build_leaderboard(lake: Lake, on_event: OnEvent = ignore, output: Path | None = None) -> Artifact:
    """Build ``leaderboard`` from all scores in the lake, or return it when nothing changed since.

    Files: ``leaderboard.parquet`` (a row per score), ``leaderboard.csv`` (a row per checkpoint), ``leaderboard.png``
    (scores against tokens), ``losses.png`` where a run has logged losses, ``index.html``.

    Args:
        lake: the lake.
        on_event: gets started, finished, and a warning for each scores file and each run's log that cannot be read.
        output: folder of the artifact; default: the lake's reports.
    """
    if output is not None:
        require_own_folder(output, KIND)
    artifacts = list(lake.artifacts(SCORES_KIND))
    runs = training_runs(lake, on_event)
    id = _identity(artifacts, runs)
    final = output or lake.reports_dir
    with lock(final, on_event):
        if found := find_intact(final, id, on_event):
            return found
        on_event(event("started", stage=KIND, scores=len(artifacts), runs=len(runs)))
        with publish(final, kind=KIND, id=id, inputs=artifacts) as draft:
            _write(draft.dir, draft.stats, lake, artifacts, runs, on_event)
    on_event(event("finished", stage=KIND, **draft.stats))
    return draft.artifact


def leaderboard_id(lake: Lake) -> str:
    """Identity of the leaderboard that the lake's scores and runs would make now."""
    return _identity(list(lake.artifacts(SCORES_KIND)), training_runs(lake))


def _identity(artifacts: list[Artifact], runs: Mapping[str, Path]) -> str:
    parameters = {
        "contents": [artifact.content for artifact in artifacts],
        "prices": {name: hour_price(folder) for name, folder in runs.items()},
        "metrics": {name: sha256_file(folder / METRICS) for name, folder in runs.items()},
    }
    return artifact_id(KIND, STAGE_VERSION, [artifact.id for artifact in artifacts], parameters)


def _write(
    folder: Path,
    stats: dict[str, Any],
    lake: Lake,
    artifacts: list[Artifact],
    runs: Mapping[str, Path],
    on_event: OnEvent,
) -> None:
    from pamp_pipelines.evaluation.chart import loss_chart, score_chart
    from pamp_pipelines.evaluation.fonts import undrawn
    from pamp_pipelines.evaluation.frames import long_table, primary, wide_table
    from pamp_pipelines.evaluation.page import render
    from pamp_pipelines.evaluation.trace import Index

    spent = costs(runs)
    long = long_table(artifacts, on_event, spent)
    wide = wide_table(long)
    long.to_parquet(folder / TABLE, index=False)
    wide.to_csv(folder / WIDE, index=False, lineterminator="\n")
    pictures = {}
    if len(long):
        pictures["scores"] = score_chart(long, primary(long))
        (folder / "leaderboard.png").write_bytes(pictures["scores"])
    losses = {}
    for name, path in runs.items():
        try:
            losses[name] = loss_curves(path)
        except InputError as error:  # one damaged run must not hide the scores
            on_event(event("warning", message=str(error)))
    named = [str(name) for column in ("model", "training_config", "evaluation", "metric") for name in set(long[column])]
    if boxes := undrawn([*named, *losses]):
        message = f"no installed font has {boxes[:20]}: pictures show boxes there; install one, e.g. fonts-noto-cjk"
        on_event(event("warning", message=message))
    if losses := {name: curves for name, curves in losses.items() if curves}:
        pictures["losses"] = loss_chart(losses)
        (folder / "losses.png").write_bytes(pictures["losses"])
    (folder / PAGE).write_text(render(long, artifacts, Index(lake), pictures, spent), encoding="utf-8")
    stats |= {"rows": len(long), "checkpoints": len(wide), "evaluations": int(long["evaluation"].nunique())}


def read_headlines(folder: Path) -> list[Headline]:
    """Perplexity before and after each run, from a leaderboard's folder; empty where there is none."""
    import pyarrow.parquet as pq

    file = folder / TABLE
    return headlines(pq.read_table(file).to_pylist()) if file.is_file() else []


def training_runs(lake: Lake, on_event: OnEvent = ignore) -> dict[str, Path]:
    """Version directories that have logged metrics, by ``model · config`` (and version, from the second on).

    One whose log cannot be read is passed over, which a ``warning`` tells; a folder of another name is no version.
    """
    runs = {}
    for file in sorted((lake.root / "runs").glob(f"*/*/v*/{METRICS}")):
        version, config, model = file.parts[-2], file.parts[-3], file.parts[-4]
        if not version[1:].isdecimal():
            continue
        if problem := _unreadable(file):
            on_event(event("warning", message=f"{file}: passed over, since it cannot be read ({problem})"))
            continue
        suffix = "" if version == "v0001" else f" · v{int(version[1:])}"
        runs[f"{model} · {config}{suffix}"] = file.parent
    return runs


def _unreadable(file: Path) -> str | None:
    if file.exists() and not file.is_file():
        return "it is no file"  # not opened: a pipe would wait for its writer
    try:
        with file.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def loss_curves(run: Path) -> dict[str, list[tuple[float, float]]]:
    """Training and validation loss of a run: (tokens, nats a token), as far as they are finite."""
    tokens = read_job(run / "job.json").tokens_per_iteration
    metrics = read_metrics(run / METRICS)
    curves = {
        name: [
            (float(entry["iteration"] * tokens), float(entry[name])) for entry in metrics if entry.get(name) is not None
        ]
        for name in ("loss", "validation_loss")
    }
    return {name: points for name, points in curves.items() if points}
