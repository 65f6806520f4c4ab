"""``pamp reindex``: rebuild Dagster's records from the lake."""

from dataclasses import asdict
from pathlib import Path

from pamp_pipelines.commands.command import Outcome, command, discover
from pamp_pipelines.commands.progress import progress


@command("reindex", short_help="Tell Dagster what the lake holds, after its home was lost.")
def reindex(project: Path | None) -> Outcome:
    """Report every artifact of the lake that the instance in DAGSTER_HOME does not know.

    Materialisations with their metadata, checks and versions, checkpoints as partitions, and loss curves come back;
    runs and their logs do not. Nothing is made again and nothing in the lake is changed; a second call finds nothing.
    What cannot be read is left out and named, and the exit status is then 1.
    """
    with progress() as on_event:
        from pamp_pipelines.orchestration.damage import sentences
        from pamp_pipelines.orchestration.reindex import reindex as run

        done = run(discover(project), on_event)
    lines = [f"{one.asset:<32} {one.partition or '':<60} {one.artifacts}" for one in done.reported]
    lines = lines or ["Dagster knows everything that the lake holds."]
    lines += [f"left out: {problem}" for problem in sentences(done.left_out)]
    data = {"partitions": [asdict(one) for one in done.reported], "left_out": done.left_out}
    return Outcome(data, lines, ok=not done.left_out)
