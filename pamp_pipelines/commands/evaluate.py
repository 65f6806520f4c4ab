"""``pamp evaluate``: score a Hugging Face directory, or a kept checkpoint's export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pamp_pipelines.commands.artifacts import artifact_data, check_lines
from pamp_pipelines.commands.command import (
    Outcome,
    command,
    discover,
    open_catalog,
    open_lake,
    optional_project,
    require,
)
from pamp_pipelines.commands.progress import progress
from pamp_pipelines.errors import InputError

if TYPE_CHECKING:
    from pamp_pipelines.lake.artifact import Artifact
    from pamp_pipelines.lake.store import CheckpointKey


class BatchSize(click.ParamType):
    """A number of requests, or ``auto``."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value).strip()
        if text.lower() == "auto":
            return "auto"
        if not text.isdecimal() or int(text) < 1:
            self.fail(f"{value!r} is neither a number of requests, from 1, nor `auto`.", param, ctx)
        return int(text)


@command("evaluate", short_help="Score a model with lm-eval.")
@click.argument("targets", nargs=-1, required=True, metavar="HF_DIR_OR_CHECKPOINT...")
@click.option("--suite", "suites", multiple=True, metavar="NAME_OR_TASK_YAML", help="What to score on; repeatable.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for scores. Default: scores/<name of HF_DIR>.")
@click.option("--data", multiple=True, metavar="TASK=FILE", help="JSON-lines rows of a task; repeatable.")
@click.option("--limit", type=click.IntRange(1), help="Score only the first rows of each task.")
@click.option("--batch-size", type=BatchSize(), help="Requests in one forward pass; auto: what a GPU's memory takes.")
@click.option("--allow-code", is_flag=True, help="Let a task YAML from outside the project run its Python.")
@click.option(
    "--profile", metavar="P", help="Compute profile in resources/: a cluster's makes an array job of several."
)
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]))
def evaluate(
    project: Path | None,
    targets: tuple[str, ...],
    suites: tuple[str, ...],
    output: Path | None,
    data: tuple[str, ...],
    limit: int | None,
    batch_size: int | str | None,
    allow_code: bool,
    profile: str | None,
    device: str,
) -> Outcome:
    """Score a Hugging Face directory without a project, or kept checkpoints of the project by their keys:

    \b
      pamp evaluate exported/ --suite arithmetic
      pamp evaluate shakespeare-tiny/shakespeare-scratch/v0001/0000150 --suite math

    A suite is a declared evaluation, a task YAML file, or the name of a task. A checkpoint is scored on all declared
    evaluations unless some are named. On a cluster several checkpoints share an array job of nodes x
    processes_per_node tasks.
    """
    from pamp_pipelines.evaluation.run import evaluate as run

    suites = tuple(dict.fromkeys(suites))

    if len(targets) == 1 and Path(target := targets[0]).is_dir():
        from pamp_pipelines.evaluation.plain import plain_job

        require(bool(suites), "--suite is needed with a directory")
        require(profile is None, "--profile is for checkpoint keys")
        found = optional_project(project)
        given = {"limit": limit, "batch_size": batch_size, "allow_code": allow_code or None}
        job = plain_job(
            Path(target),
            suites,
            output or Path("scores") / Path(target).resolve().name,
            declared=open_catalog(found).evaluations if found else None,
            data=dict(map(_row_file, data)),
            root=found.root if found else None,
            settings={key: value for key, value in given.items() if value is not None},
            device=device,
        )
        with progress() as on_event:
            artifacts = run(job, on_event)
    else:
        from pamp_pipelines.evaluation.checkpoint import evaluate_checkpoints
        from pamp_pipelines.lake.publication import published

        directories = [target for target in targets if Path(target).is_dir()]
        require(
            not directories,
            f"{', '.join(directories)}: a directory is scored alone, so run this once for each; only keys of "
            "checkpoints can be given together",
        )
        changed = output or data or limit or batch_size or allow_code or device != "auto"
        of = ", ".join(targets)
        require(not changed, f"{of} is no directory; for a checkpoint key everything but --suite is declared")
        keys = [_key(target) for target in targets]
        found = discover(project)
        catalog = open_catalog(found)
        lake = open_lake(found)
        where = catalog.profile(profile) if profile else None
        names = suites or list(catalog.evaluations)
        with progress() as on_event:
            artifacts = evaluate_checkpoints(catalog, lake, keys, names, on_event, profile=where)
            for artifact in artifacts:
                published(artifact)
    from pamp_pipelines.evaluation.frames import cut

    scores = [row for artifact in artifacts for row in _scores(artifact)]
    lines = [line for artifact in artifacts for line in (str(artifact.path), *check_lines(artifact.manifest.checks))]
    lines += [f"    {row['task']}  {row['metric']}  {row['value']:.4g}  (n {cut(row) or row['n']})" for row in scores]
    ok = not any(artifact.manifest.failed_checks for artifact in artifacts)
    return Outcome({"artifacts": [artifact_data(a) for a in artifacts], "scores": scores}, lines, ok=ok)


def _key(target: str) -> CheckpointKey:
    from pamp_pipelines.lake.store import CheckpointKey

    try:
        return CheckpointKey.parse(target)
    except InputError as error:
        raise InputError(f"{target}: no such directory; as a checkpoint key: {error}") from None


def _row_file(text: str) -> tuple[str, Path]:
    task, equals, file = text.partition("=")
    require(bool(equals and task and file), f"--data {text!r}: expected TASK=FILE")
    return task, Path(file)


def _scores(artifact: Artifact) -> Iterator[dict[str, Any]]:
    """Rows of an artifact's score table, with the evaluation's name."""
    import pyarrow.parquet

    for row in pyarrow.parquet.read_table(artifact.path / "scores.parquet").to_pylist():
        yield {"evaluation": artifact.path.name, **row}
