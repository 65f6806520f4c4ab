"""``pamp compare``: what changed between two checkpoints, and whether it is more than chance."""

from dataclasses import asdict
from pathlib import Path

import click

from pamp_pipelines.commands.command import Number, Outcome, command, open_lake, optional_project
from pamp_pipelines.commands.leaderboard import aligned


@command("compare", short_help="Differences of two checkpoints' scores with confidence intervals.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--confidence", type=Number(0.5, 0.9999), default=0.95, show_default=True)
def compare(project: Path | None, a: str, b: str, confidence: float) -> Outcome:
    """Compare the scores of B with those of A: checkpoint keys, or folders that `pamp evaluate` wrote.

    Intervals are paired by sample where both scored the same rows, which is narrower than two separate errors.
    """
    from pamp_pipelines.evaluation.compare import compare as differences_of
    from pamp_pipelines.evaluation.compare import scores_of

    found = optional_project(project)
    lake = open_lake(found) if found else None
    differences, left_out = differences_of(scores_of(a, lake), scores_of(b, lake), confidence)
    cells = [["evaluation", "task", "metric", "n", "A", "B", "B - A", f"{confidence:.0%} interval", ""]]
    for d in differences:
        interval = "–" if d.low is None or d.high is None else f"{d.low:+.4g} … {d.high:+.4g}"
        numbers = [d.cut or str(d.n), f"{d.a:.4g}", f"{d.b:.4g}", f"{d.difference:+.4g}", interval]
        cells.append([d.evaluation, d.task, d.metric, *numbers, d.verdict + ("" if d.paired else " (not paired)")])
    lines = [*aligned(cells), *(f"not compared: {reason}" for reason in left_out)]
    return Outcome({"differences": [asdict(d) for d in differences], "not_compared": left_out}, lines)
