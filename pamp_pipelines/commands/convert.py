"""``pamp import-hf`` and ``pamp export-hf``: between Hugging Face directories and Megatron checkpoints."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import artifact_outcome
from pamp_pipelines.commands.command import Outcome, command, discover
from pamp_pipelines.commands.progress import progress


@command("import-hf", short_help="Hugging Face model to Megatron checkpoint.")
@click.argument("source")
@click.argument("destination", required=False, type=click.Path(path_type=Path))
def import_hf(project: Path | None, source: str, destination: Path | None) -> Outcome:
    """Convert a declared model, or any Hugging Face directory without a project:

    \b
      pamp import-hf smollm2-135m-instruct
      pamp import-hf path/to/hf-model megatron/
    """
    from pamp_pipelines.conversion.importer import import_hf as run
    from pamp_pipelines.conversion.job import import_job, plain_import_job

    if destination is not None:
        job = plain_import_job(Path(source), destination)
    else:
        from pamp_pipelines.declarations.catalog import load_catalog
        from pamp_pipelines.lake.store import Lake

        found = discover(project)
        job = import_job(load_catalog(found), Lake(found.lake), source)
    with progress() as on_event:
        return artifact_outcome(run(job, on_event))


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
    """Export a kept checkpoint by its key, or any checkpoint directory without a project:

    \b
      pamp export-hf shakespeare-tiny/shakespeare-scratch/v0001/0000150
      pamp export-hf megatron/ exported/
    """
    from pamp_pipelines.conversion.exporter import export_hf as run
    from pamp_pipelines.conversion.job import plain_export_job

    if destination is not None:
        job = plain_export_job(Path(checkpoint), destination, template)
    else:
        if template is not None:
            raise click.UsageError("--template goes with CHECKPOINT DESTINATION; a key has its own template")
        from pamp_pipelines.declarations.catalog import load_catalog
        from pamp_pipelines.lake.store import CheckpointKey, Lake
        from pamp_pipelines.training.resolve import export_job

        found = discover(project)
        job = export_job(load_catalog(found), Lake(found.lake), CheckpointKey.parse(checkpoint))
    with progress() as on_event:
        return artifact_outcome(run(job, on_event))
