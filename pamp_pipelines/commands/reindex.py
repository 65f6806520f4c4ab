"""``pamp reindex``: rebuild Dagster's records from the lake."""

from pathlib import Path

from pamp_pipelines.commands.command import Outcome, command, discover
from pamp_pipelines.commands.progress import progress


@command("reindex", short_help="Tell Dagster what the lake holds, after its home was lost.")
def reindex(project: Path | None) -> Outcome:
    """Report every artifact of the lake that the instance in DAGSTER_HOME does not know.

    Materialisations with their metadata, checks and versions, checkpoints as partitions, and loss curves come back;
    runs and their logs do not. Nothing is made again and nothing in the lake is changed; a second call finds nothing.
    """
    with progress() as on_event:
        from pamp_pipelines.orchestration.reindex import reindex as run

        done = run(discover(project), on_event)
    lines = [f"{one.asset:<32} {one.partition or '':<60} {one.artifacts}" for one in done]
    data = {
        "partitions": [{"asset": d.asset, "partition": d.partition, "artifacts": d.artifacts} for d in done],
    }
    return Outcome(data, lines or ["Dagster knows everything that the lake holds."])
