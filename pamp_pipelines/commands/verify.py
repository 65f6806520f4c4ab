"""``pamp verify-checkpoint``: is a Megatron checkpoint the same model as its Hugging Face source."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import check_lines, verdict
from pamp_pipelines.commands.command import Outcome, command, discover, open_lake
from pamp_pipelines.commands.progress import progress
from pamp_pipelines.errors import InputError, MissingInput


@command("verify-checkpoint", short_help="Is a Megatron checkpoint the model it was converted from.")
@click.argument("source")
@click.argument("checkpoint", required=False, type=click.Path(path_type=Path))
@click.option("--layers", type=click.IntRange(0), default=2, help="Layers to run, from the first; 0: all. Default: 2.")
def verify_checkpoint(project: Path | None, source: str, checkpoint: Path | None, layers: int) -> Outcome:
    """Compare the import of a declared model, or any checkpoint without a project, with its Hugging Face source:

    \b
      pamp verify-checkpoint smollm2-135m-instruct
      pamp verify-checkpoint path/to/hf-model megatron/

    All weights are compared bit by bit. Megatron's model is built as training builds it, from the checkpoint's
    hf_template/: its construction (rotary frequencies, norms, biases) and its logits must be those of Hugging Face.
    Ranks of Megatron load it at other parallel sizes and save it again; hashes are those that the import recorded.
    """
    from pamp_pipelines.verification.checkpoint import verify_checkpoint as verify

    directory, place = (Path(source), checkpoint) if checkpoint is not None else _declared(project, source)
    with progress() as on_event:
        checks = verify(directory, place, layers=layers or None, on_event=on_event)
    data = {
        "source": str(directory.absolute()),
        "checkpoint": str(place.absolute()),
        "checks": [check.model_dump(mode="json") for check in checks],
    }
    return Outcome(data, [f"{place} against {directory}", *check_lines(checks)], ok=verdict(checks))


def _declared(project: Path | None, model: str) -> tuple[Path, Path]:
    """Source and import of a declared model."""
    from pamp_pipelines.conversion.job import import_job
    from pamp_pipelines.declarations.catalog import load_catalog
    from pamp_pipelines.lake.artifact import find
    from pamp_pipelines.lake.staging import here

    found = discover(project)
    job = import_job(load_catalog(found), open_lake(found), model)
    if job.source is None:
        raise InputError(f"{model!r} is trained from scratch: there is no source to compare it with")
    artifact = find(job.output, job.id)
    if artifact is None:
        raise MissingInput("megatron_checkpoint", model)
    return job.source, here(artifact.path)
