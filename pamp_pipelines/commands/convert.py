"""``pamp import-hf`` and ``pamp export-hf``: between Hugging Face directories and Megatron checkpoints."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import artifact_outcome
from pamp_pipelines.commands.command import Outcome, command, discover, open_lake
from pamp_pipelines.commands.progress import progress


@command("import-hf", short_help="Hugging Face model to Megatron checkpoint.")
@click.argument("source")
@click.argument("destination", required=False, type=click.Path(path_type=Path))
@click.option("--plan", is_flag=True, help="Say what would be written and how much memory it takes; write nothing.")
def import_hf(project: Path | None, source: str, destination: Path | None, plan: bool) -> Outcome:
    """Convert and verify a declared model, or convert any Hugging Face directory without a project:

    \b
      pamp import-hf smollm2-135m-instruct
      pamp import-hf path/to/hf-model megatron/
      pamp import-hf path/to/hf-model megatron/ --plan
    """
    if plan:
        return _plan(project, source, destination)
    if destination is not None:
        from pamp_pipelines.conversion.importer import import_hf as convert
        from pamp_pipelines.conversion.job import plain_import_job

        job = plain_import_job(Path(source), destination)
        with progress() as on_event:
            return artifact_outcome(convert(job, on_event))

    from pamp_pipelines.conversion.job import import_job
    from pamp_pipelines.declarations.catalog import load_catalog
    from pamp_pipelines.lake.publication import published
    from pamp_pipelines.verification.stages import import_and_verify

    found = discover(project)
    job = import_job(load_catalog(found), open_lake(found), source)
    with progress() as on_event:
        return artifact_outcome(published(import_and_verify(job, on_event)))


def _plan(project: Path | None, source: str, destination: Path | None) -> Outcome:
    """From config.json and the safetensors headers alone."""
    from pamp_pipelines.conversion.importer import describe_plan
    from pamp_pipelines.conversion.job import ImportJob

    if destination is not None:
        job = ImportJob(name=Path(source).name, id="plan", output=destination, source=Path(source).absolute())
    else:
        from pamp_pipelines.declarations.catalog import load_catalog
        from pamp_pipelines.declarations.hf_config import hf_directory

        found = discover(project)
        declared = load_catalog(found).model(source)
        job = ImportJob(name=source, id="plan", output=found.lake, source=hf_directory(found, declared))
    data = describe_plan(job)
    return Outcome(data, [f"{name.replace('_', ' ')}: {_shown(name, value)}" for name, value in data.items()])


def _shown(name: str, value: object) -> object:
    if isinstance(value, int):
        return f"{value / 1e9:,.2f} GB" if name.endswith("_bytes") else f"{value:,}"
    return "; ".join(map(str, value)) or "nothing" if isinstance(value, list) else value


@command("export-hf", short_help="Megatron checkpoint to Hugging Face model.")
@click.argument("checkpoint")
@click.argument("destination", required=False, type=click.Path(path_type=Path))
@click.option(
    "--template",
    type=click.Path(path_type=Path),
    metavar="SRC",
    help="Hugging Face directory with config and tokenizer. Default: hf_template/ beside the checkpoint.",
)
def export_hf(project: Path | None, checkpoint: str, destination: Path | None, template: Path | None) -> Outcome:
    """Export and verify a kept checkpoint by its key, or export any checkpoint directory without a project:

    \b
      pamp export-hf shakespeare-tiny/shakespeare-scratch/v0001/0000150
      pamp export-hf megatron/ exported/
    """
    if destination is not None:
        from pamp_pipelines.conversion.exporter import export_hf as convert
        from pamp_pipelines.conversion.job import plain_export_job

        job = plain_export_job(Path(checkpoint), destination, template)
        with progress() as on_event:
            return artifact_outcome(convert(job, on_event))

    if template is not None:
        raise click.UsageError("--template goes with CHECKPOINT DESTINATION; a key has its own template")
    from pamp_pipelines.declarations.catalog import load_catalog
    from pamp_pipelines.lake.publication import published
    from pamp_pipelines.lake.store import CheckpointKey
    from pamp_pipelines.training.resolve import export_job
    from pamp_pipelines.verification.loss import loss_job
    from pamp_pipelines.verification.stages import export_and_verify

    found = discover(project)
    catalog, lake, key = load_catalog(found), open_lake(found), CheckpointKey.parse(checkpoint)
    with progress() as on_event:
        job = export_job(catalog, lake, key)
        return artifact_outcome(published(export_and_verify(job, loss_job(lake, key), on_event)))
