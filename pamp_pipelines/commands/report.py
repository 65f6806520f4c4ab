"""``pamp report``: all scores of the lake as one page and two tables."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import artifact_data
from pamp_pipelines.commands.command import Outcome, command, discover, open_lake
from pamp_pipelines.commands.leaderboard import summary
from pamp_pipelines.commands.progress import progress


@command("report", short_help="All scores as one HTML page, Parquet and CSV.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write. Default: the lake's reports.")
def report(project: Path | None, output: Path | None) -> Outcome:
    """Build the leaderboard from every score in the lake: what the asset `leaderboard` builds.

    The folder gets index.html (one file, no network), leaderboard.parquet (a row per score), leaderboard.csv (a row per
    checkpoint) and the plots as PNG. Nothing is done when nothing has changed.
    """
    from pamp_pipelines.evaluation.leaderboard import PAGE, TABLE, WIDE, build_leaderboard
    from pamp_pipelines.lake.publication import published

    lake = open_lake(discover(project))
    with progress() as on_event:
        artifact = published(build_leaderboard(lake, on_event, output and output.resolve()))
    rows, lines = summary(artifact.path)
    if not rows:
        lines.insert(0, f"{lake.root}: no readable scores yet; `pamp evaluate CHECKPOINT` makes some.")
    places = {"report": PAGE, "parquet": TABLE, "csv": WIDE}
    files = {name: str(artifact.path / file) for name, file in places.items()}
    lines += [f"{name:<12} {files[name]}" for name in ("parquet", "csv")]
    return Outcome({"artifact": artifact_data(artifact), **files, "leaderboard": rows}, lines)
