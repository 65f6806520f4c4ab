"""``pamp materialize`` and ``pamp demo``: run assets on the project's Dagster instance."""

from pathlib import Path
from typing import Any

import click

from pamp_pipelines.commands.command import Outcome, command, discover, open_lake, require
from pamp_pipelines.commands.leaderboard import summary
from pamp_pipelines.commands.progress import progress
from pamp_pipelines.project import Project


@command("materialize", short_help="Run assets as Dagster does, in this process.")
@click.argument("asset", required=False)
@click.option("--partition", metavar="KEY", help="One partition, e.g. `shakespeare-tiny|shakespeare-scratch`.")
@click.option("--all", "everything", is_flag=True, help="All declared partitions that are not up to date.")
def materialize(project: Path | None, asset: str | None, partition: str | None, everything: bool) -> Outcome:
    """Materialise ASSET on the instance in DAGSTER_HOME: ordinary runs, which the UI shows.

    Without ASSET, with --all: every declared partition of the whole chain. `eval_scores` stands for all evaluations,
    `eval_scores/NAME` for one.
    """
    require(asset is not None or everything, "name an ASSET, or give --all for the whole chain")
    require(not (everything and partition), "--all and --partition exclude each other")
    partitions = _materialize(discover(project), asset, partition, everything)
    return Outcome({"partitions": [_data(p) for p in partitions]}, map(_line, partitions))


@command("demo", short_help="The whole chain on the demo's input, then the leaderboard.")
def demo(project: Path | None) -> Outcome:
    """Materialise every declared partition of the whole chain, then show the leaderboard.

    A second run finds all done within seconds.
    """
    from pamp_pipelines.evaluation.leaderboard import PAGE

    found = discover(project)
    partitions = _materialize(found, None, None, True)
    reports = open_lake(found).reports_dir
    rows, told = summary(reports)
    lines = [
        *(_line(p) for p in partitions),
        "",
        *told,
        "UI           make dev, then http://127.0.0.1:3000",
        f"lineage      pamp trace {reports}",
    ]
    data = {"partitions": [_data(p) for p in partitions], "leaderboard": rows, "report": str(reports / PAGE)}
    return Outcome(data, lines)


def _materialize(project: Project, asset: str | None, partition: str | None, everything: bool) -> list[Any]:
    with progress() as on_event:
        from pamp_pipelines.declarations.catalog import load_catalog
        from pamp_pipelines.orchestration.materialize import materialize as run

        if everything:
            load_catalog(project)  # nothing that is declared may be passed over in silence
        return run(project, asset, partition, all_partitions=everything, on_event=on_event)


def _data(partition: Any) -> dict[str, Any]:
    return {
        "asset": partition.asset,
        "partition": partition.partition,
        "data_version": partition.data_version,
        "path": str(partition.path),
        "run_id": partition.run_id,
        "seconds": round(partition.seconds, 2),
    }


def _line(partition: Any) -> str:
    done = "up to date" if partition.run_id is None else f"{partition.seconds:.1f} s"
    return f"{partition.asset:<32} {partition.partition or '':<60} {partition.data_version[:12]}  {done}"
