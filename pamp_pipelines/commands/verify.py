"""``pamp verify-checkpoint``: is a Megatron checkpoint the same model as its Hugging Face source."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import check_lines, verdict
from pamp_pipelines.commands.command import Outcome, command, discover
from pamp_pipelines.commands.progress import progress
from pamp_pipelines.errors import InputError, MissingInput


@command("verify-checkpoint", short_help="Is a Megatron checkpoint the model it was converted from.")
@click.argument("source")
@click.argument("checkpoint", required=False, type=click.Path(path_type=Path))
@click.option("--layers", type=click.IntRange(0), default=0, help="Compare only the first layers. Default 0: all.")
def verify_checkpoint(project: Path | None, source: str, checkpoint: Path | None, layers: int) -> Outcome:
    """Compare the import of a declared model, or any checkpoint without a project, with its Hugging Face source:

    \b
      pamp verify-checkpoint smollm2-135m-instruct
      pamp verify-checkpoint path/to/hf-model megatron/

    Megatron's model is built as training builds it, from the checkpoint's hf_template/. Its construction (rotary
    frequencies, norms, biases) and its logits must be those of Hugging Face's model, in float32 on the CPU.
    """
    from pamp_pipelines.conversion.torch_dist import checkpoint_dir
    from pamp_pipelines.verification.job import ParityCase
    from pamp_pipelines.verification.parity import forward_parity

    directory, place = (Path(source), checkpoint) if checkpoint is not None else _declared(project, source)
    if not (directory / "config.json").is_file():
        raise InputError(f"{directory / 'config.json'}: missing; give a Hugging Face model directory")
    template = _template(place)
    case = ParityCase(
        name=place.name,
        source=directory.absolute(),
        checkpoint=checkpoint_dir(place.absolute()),
        template=template.absolute(),
        layers=layers or None,
    )
    with progress() as on_event:
        checks = tuple(forward_parity([case], on_event=on_event)[case.name])
    data = {
        "source": str(case.source),
        "checkpoint": str(case.checkpoint),
        "template": str(case.template),
        "checks": [check.model_dump(mode="json") for check in checks],
    }
    return Outcome(data, [f"{case.checkpoint} against {case.source}", *check_lines(checks)], ok=verdict(checks))


def _declared(project: Path | None, model: str) -> tuple[Path, Path]:
    """Source and import of a declared model."""
    from pamp_pipelines.conversion.job import import_job
    from pamp_pipelines.declarations.catalog import load_catalog
    from pamp_pipelines.lake.artifact import find
    from pamp_pipelines.lake.store import Lake

    found = discover(project)
    job = import_job(load_catalog(found), Lake(found.lake), model)
    if job.source is None:
        raise InputError(f"{model!r} is trained from scratch: there is no source to compare it with")
    artifact = find(job.output, job.id)
    if artifact is None:
        raise MissingInput("megatron_checkpoint", model)
    return job.source, artifact.path


def _template(checkpoint: Path) -> Path:
    """The ``hf_template/`` that an import wrote beside the weights; training builds its model from it."""
    place = checkpoint.absolute()
    for folder in (place, *place.parents[:3]):
        if (folder / "hf_template" / "config.json").is_file():
            return folder / "hf_template"
    raise InputError(f"{checkpoint}: no hf_template/ beside the checkpoint; import it with `pamp import-hf`")
