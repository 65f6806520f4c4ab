"""``pamp train``: train a declared model with a declared config, or show what would be trained."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import artifact_outcome, check_lines, verdict
from pamp_pipelines.commands.command import Outcome, command, discover, open_catalog, open_lake, require
from pamp_pipelines.commands.progress import progress


@command("train", short_help="Train a model with a config; resumes what was begun.")
@click.argument("model")
@click.argument("config")
@click.option("--profile", metavar="P", help="Compute profile in resources/ instead of the config's.")
@click.option("--fresh", is_flag=True, help="Begin a new version although one of equal inputs exists.")
@click.option(
    "--take-over",
    is_flag=True,
    help="In a lake at a URL: go on with an unfinished version of another machine, from the newest checkpoint that it "
    "published. Nobody may train there any more.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace a field, e.g. optimizer.lr=1e-4.")
@click.option(
    "--dry-run", is_flag=True, help="Build the model, compare it with Hugging Face's, show what would be started."
)
def train(
    project: Path | None,
    model: str,
    config: str,
    profile: str | None,
    fresh: bool,
    take_over: bool,
    overrides: tuple[str, ...],
    dry_run: bool,
) -> Outcome:
    """Train the declared MODEL with the declared training CONFIG on Megatron.

    A run that was begun goes on from its newest complete checkpoint; a finished one is returned at once. The version
    directory holds metrics.jsonl, TensorBoard files, logs and the checkpoints with Megatron's tracker.
    """
    from pamp_pipelines.training.resolve import train_job

    require(not (fresh and take_over), "--fresh begins a version, --take-over goes on with one")
    found = discover(project)
    with progress() as on_event:
        job = train_job(
            open_catalog(found),
            open_lake(found),
            model,
            config,
            profile=profile,
            fresh=fresh,
            take_over=take_over,
            overrides=overrides,
            claim=not dry_run,
            on_event=on_event,
        )
    if dry_run:
        from pamp_pipelines.training.run import preview
        from pamp_pipelines.verification.dry_run import dry_run as construct

        with progress() as on_event:
            facts, checks = construct(job, on_event)
        lines = [f"{job.name}  {job.run_dir}", *(f"    {key}: {value}" for key, value in facts.items())]
        data = {
            "job": job.model_dump(mode="json"),
            "constructed": facts,
            "submission": (submission := preview(job)),
            "checks": [check.model_dump(mode="json") for check in checks],
        }
        return Outcome(data, [*lines, *check_lines(checks), "", submission], ok=verdict(checks))
    from pamp_pipelines.lake.publication import published
    from pamp_pipelines.verification.step_zero import train_and_verify

    with progress() as on_event:
        artifact = published(train_and_verify(job, on_event))
    return artifact_outcome(artifact, run=job.name, metrics=str(job.metrics_path), checkpoints=str(job.checkpoints_dir))
