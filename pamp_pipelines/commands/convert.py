"""``pamp import-hf`` and ``pamp export-hf``: between Hugging Face directories and Megatron checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from pamp_pipelines.commands.artifacts import artifact_outcome
from pamp_pipelines.commands.command import Number, Outcome, command, discover, open_catalog, open_lake, require
from pamp_pipelines.commands.progress import progress
from pamp_pipelines.conversion.dtypes import DTypeName

if TYPE_CHECKING:
    from pamp_pipelines.conversion.job import ImportJob

_PLAN = "Say what would be written and how much memory it takes; write nothing."


def _resources(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that decide how much of the machine a conversion takes, and nothing about its result."""
    workers = click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="Processes at most. Default: one a core, up to 8."
    )
    memory = click.option("--memory", type=Number(0, min_open=True), metavar="GB", help="Of all of them. Default: 2.1.")
    return workers(memory(function))


def _given(workers: int | None, memory: float | None) -> dict[str, int]:
    """Fields of a job.

    Raises:
        UsageError: no conversion can be done within that memory.
    """
    memory_bytes = None
    if memory is not None:
        from pamp_pipelines.conversion.plan import peak_bytes

        least = math.ceil(peak_bytes(1) / 1e7) / 100
        require(memory >= least, f"--memory {memory:g}: a conversion needs {least} GB at least")
        memory_bytes = int(memory * 1e9)
    given = {"workers": workers, "memory_bytes": memory_bytes}
    return {name: value for name, value in given.items() if value is not None}


@command("import-hf", short_help="Hugging Face model to Megatron checkpoint.")
@click.argument("source")
@click.argument("destination", required=False, type=click.Path(path_type=Path))
@click.option("--plan", is_flag=True, help=_PLAN)
@_resources
@click.option("--profile", metavar="P", help="Compute profile in resources/: a cluster's makes an array job of it.")
def import_hf(
    project: Path | None,
    source: str,
    destination: Path | None,
    plan: bool,
    workers: int | None,
    memory: float | None,
    profile: str | None,
) -> Outcome:
    """Convert and verify a declared model, or convert any Hugging Face directory without a project:

    \b
      pamp import-hf smollm2-135m-instruct
      pamp import-hf path/to/hf-model megatron/
      pamp import-hf path/to/hf-model megatron/ --plan
    """
    given = _given(workers, memory)
    require(profile is None or destination is None, "--profile is for a declared model")
    if plan:
        from pamp_pipelines.conversion.importer import describe_plan

        if profile is not None:
            open_catalog(discover(project)).profile(profile)  # there, or refused: a plan is the same on all of them
        return _shown(describe_plan(_planned_import(project, source, destination).model_copy(update=given)))
    if destination is not None:
        from pamp_pipelines.conversion.importer import import_hf as convert
        from pamp_pipelines.conversion.job import plain_import_job

        job = plain_import_job(Path(source), destination, **given)
        with progress() as on_event:
            return artifact_outcome(convert(job, on_event))

    from pamp_pipelines.conversion.job import import_job
    from pamp_pipelines.lake.publication import published
    from pamp_pipelines.verification.stages import import_and_verify

    found = discover(project)
    catalog = open_catalog(found)
    where = catalog.profile(profile) if profile is not None else None
    job = import_job(catalog, open_lake(found), source).model_copy(update=given)
    with progress() as on_event:
        return artifact_outcome(published(import_and_verify(job, on_event, profile=where)))


def _planned_import(project: Path | None, source: str, destination: Path | None) -> ImportJob:
    """Planned from config.json and the safetensors headers alone: nothing is hashed."""
    from pamp_pipelines.conversion.job import ImportJob

    if destination is not None:
        return ImportJob(name=Path(source).name, id="plan", output=destination, source=Path(source).absolute())
    from pamp_pipelines.declarations.hf_config import hf_directory

    found = discover(project)
    declared = open_catalog(found).model(source)
    return ImportJob(name=source, id="plan", output=found.lake, source=hf_directory(found, declared))


def _shown(plan: dict[str, Any]) -> Outcome:
    def said(name: str, value: object) -> object:
        if isinstance(value, int):
            return f"{value / 1e9:,.2f} GB" if name.endswith("_bytes") else f"{value:,}"
        return "; ".join(map(str, value)) or "nothing" if isinstance(value, list) else value

    return Outcome(plan, [f"{name.replace('_', ' ')}: {said(name, value)}" for name, value in plan.items()])


@command("export-hf", short_help="Megatron checkpoint to Hugging Face model.")
@click.argument("checkpoint")
@click.argument("destination", required=False, type=click.Path(path_type=Path))
@click.option(
    "--template",
    type=click.Path(path_type=Path),
    metavar="SRC",
    help="Hugging Face directory with config and tokenizer. Default: hf_template/ beside the checkpoint.",
)
@click.option(
    "--dtype", type=click.Choice(get_args(DTypeName)), help="Of the exported weights. Default: that of the checkpoint."
)
@click.option("--plan", is_flag=True, help=_PLAN)
@_resources
@click.option("--profile", metavar="P", help="Compute profile in resources/: a cluster's makes an array job of it.")
def export_hf(
    project: Path | None,
    checkpoint: str,
    destination: Path | None,
    template: Path | None,
    dtype: DTypeName | None,
    plan: bool,
    workers: int | None,
    memory: float | None,
    profile: str | None,
) -> Outcome:
    """Export and verify a kept checkpoint by its key, or export any checkpoint directory without a project:

    \b
      pamp export-hf shakespeare-tiny/shakespeare-scratch/v0001/0000150
      pamp export-hf megatron/ exported/
      pamp export-hf megatron/ exported/ --dtype float16 --plan
    """
    given = _given(workers, memory)
    if destination is not None:
        require(profile is None, "--profile is for a checkpoint's key")
        from pamp_pipelines.conversion.exporter import describe_plan
        from pamp_pipelines.conversion.exporter import export_hf as convert
        from pamp_pipelines.conversion.job import plain_export_job

        job = plain_export_job(Path(checkpoint), destination, template, dtype=dtype, **given)
        if plan:
            return _shown(describe_plan(job))
        with progress() as on_event:
            return artifact_outcome(convert(job, on_event))

    if template is not None:
        raise click.UsageError("--template goes with CHECKPOINT DESTINATION; a key has its own template")
    if dtype is not None:
        raise click.UsageError("--dtype goes with CHECKPOINT DESTINATION; the export of a key keeps its own")
    from pamp_pipelines.lake.publication import published
    from pamp_pipelines.lake.store import CheckpointKey
    from pamp_pipelines.training.resolve import export_job
    from pamp_pipelines.verification.loss import loss_job
    from pamp_pipelines.verification.stages import export_and_verify

    found = discover(project)
    catalog, lake, key = open_catalog(found), open_lake(found), CheckpointKey.parse(checkpoint)
    where = catalog.profile(profile) if profile is not None else None
    job = export_job(catalog, lake, key).model_copy(update=given)
    if plan:
        from pamp_pipelines.conversion.exporter import describe_plan

        return _shown(describe_plan(job))
    with progress() as on_event:
        return artifact_outcome(published(export_and_verify(job, loss_job(lake, key), on_event, profile=where)))
