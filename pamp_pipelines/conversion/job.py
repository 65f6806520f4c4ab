"""What a conversion is told: plain data with absolute paths, resolved from declarations or from paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from pamp_pipelines.conversion.declared import require_scratch
from pamp_pipelines.conversion.dtypes import DTypeName
from pamp_pipelines.conversion.identity import digests
from pamp_pipelines.conversion.licences import corpus_licences
from pamp_pipelines.conversion.plan import CHUNK_BYTES
from pamp_pipelines.conversion.template import template_files
from pamp_pipelines.conversion.torch_dist import METADATA, checkpoint_dir
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.hf_config import hf_directory
from pamp_pipelines.errors import InputError, MissingInput
from pamp_pipelines.lake.artifact import read_manifest
from pamp_pipelines.lake.integrity import memory_of, require_intact, require_intact_input
from pamp_pipelines.lake.manifest import ArtifactRef, artifact_id
from pamp_pipelines.lake.occupied import require_own_folder
from pamp_pipelines.lake.staging import here
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.tokenization.tiktoken_settings import SETTINGS

IMPORT_KIND = "megatron_checkpoint"
EXPORT_KIND = "hf_export"
STAGE_VERSION = 3
"""Raised by hand when a conversion's output for equal input changes."""

_MEMORY_BYTES = 2 * 2**30
_SHARD_BYTES = 5 * 10**9  # transformers' own default size of a safetensors file


def _workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


class _Job(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """What is converted, for events."""
    id: str
    """Identity of the artifact: see lake.manifest.artifact_id."""
    output: Path
    """Directory of the artifact."""
    workers: PositiveInt = Field(default_factory=_workers)
    """Processes that move data; fewer run where the memory budget is too small."""
    memory_bytes: PositiveInt = _MEMORY_BYTES
    """Anonymous memory that all processes of the conversion may use together."""
    declaration: dict[str, Any] = {}
    """Resolved declaration, for the manifest."""
    inputs: tuple[ArtifactRef, ...] = ()
    """Artifacts it is made of."""


class ImportJob(_Job):
    """Hugging Face directory to Megatron checkpoint, or the template of a model without weights."""

    source: Path | None = None
    """Hugging Face directory; None for a model from scratch."""
    config: dict[str, Any] = {}
    """From scratch: the content of `config.json`."""
    tokenizer: Path | None = None
    """From scratch: directory, tokenizer.json or SentencePiece model."""
    chunk_bytes: Annotated[int, Field(ge=1, le=2**30)] = CHUNK_BYTES
    """Largest chunk of the checkpoint."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source is None) == (self.tokenizer is None):
            raise ValueError("give either `source`, or `config` and `tokenizer`")
        return self


class ExportJob(_Job):
    """Megatron checkpoint to Hugging Face directory."""

    checkpoint: Path
    """Directory that holds `.metadata`."""
    template: Path
    """`hf_template/` of the model's import, or any Hugging Face directory of the same model."""
    dtype: DTypeName | None = None
    """Type of the exported weights; None keeps that of the checkpoint."""
    max_shard_bytes: PositiveInt = _SHARD_BYTES
    """Size of one safetensors file; a larger tensor gets a file of its own."""


def import_job(catalog: Catalog, lake: Lake, model: str) -> ImportJob:
    """The import of a declared model.

    Raises:
        InputError: the model is not declared, its directory is missing, or its from_scratch config is impossible.
    """
    declared = catalog.model(model)
    declaration = {"model": {model: declared.model_dump(mode="json")}}
    if declared.from_scratch is not None:
        require_scratch(catalog, model)
        tokenizer = catalog.project.resolve(declared.from_scratch.tokenizer)
        id = _scratch_id(declared.from_scratch.config, tokenizer)
        return ImportJob(
            name=model,
            id=id,
            output=lake.checkpoint_dir(model, id),
            config=declared.from_scratch.config,
            tokenizer=tokenizer,
            declaration=declaration,
        )
    source = hf_directory(catalog.project, declared)
    id = _source_id(source, lake.root / ".digests")
    return ImportJob(name=model, id=id, output=lake.checkpoint_dir(model, id), source=source, declaration=declaration)


def plain_import_job(source: Path, output: Path, **options: Any) -> ImportJob:
    """The import of any Hugging Face directory; `options` are further fields of ImportJob.

    Raises:
        InputError: `source` is no directory, or `output` holds or lies in something else.
        VerificationFailed: `source` is an export of this project, and damaged.
    """
    source, output = source.absolute(), output.absolute()
    require_own_folder(output, IMPORT_KIND, [source])
    id = _source_id(source, None, options.get("chunk_bytes", CHUNK_BYTES))
    inputs = require_intact_input(source, (EXPORT_KIND,))
    return ImportJob(name=source.name, id=id, output=output, source=source, inputs=inputs, **options)


def export_job(catalog: Catalog, lake: Lake, key: CheckpointKey, dtype: DTypeName | None = None) -> ExportJob:
    """The export of a kept checkpoint, with the template of the import that its record names.

    Raises:
        MissingInput: the checkpoint, or the import it started from, is not there.
    """
    file = lake.kept_record(key)
    if not file.is_file():
        raise MissingInput("checkpoint", str(key))
    record = read_manifest(file, "Put the record back from a copy.")
    if record.location is None:
        raise InputError(f"{file}: has no location; materialise the training run again")
    imported = [ref.id for ref in record.inputs if ref.kind == IMPORT_KIND]
    if not imported:
        raise InputError(f"{file}: names no {IMPORT_KIND} among its inputs; materialise the training run again")
    template = here(lake.checkpoint_dir(key.model, imported[0]) / "hf_template")
    if not template.is_dir():
        raise MissingInput(IMPORT_KIND, key.model)
    ref = ArtifactRef(kind=record.kind, id=record.id, content=record.content)
    # content, not id: a checkpoint that training wrote anew is a new input
    licences = corpus_licences(lake, record)  # the model card has them
    parameters = {
        **{"checkpoint": record.content, "template": imported[0], "dtype": dtype, "shard": _SHARD_BYTES},
        "licences": licences,
    }
    return ExportJob(
        name=str(key),
        id=artifact_id(EXPORT_KIND, STAGE_VERSION, [record.id], parameters),
        output=lake.export_dir(key),
        checkpoint=file.parent.parent / record.location,
        template=template,
        dtype=dtype,
        inputs=(ref,),
        declaration={**record.declaration, "corpora": {name: {"licence": text} for name, text in licences.items()}},
    )


def plain_export_job(checkpoint: Path, output: Path, template: Path | None = None, **options: Any) -> ExportJob:
    """The export of any checkpoint: a directory with `.metadata`, one with a tracker file, or an import's artifact.

    Without `template` the `hf_template/` beside the checkpoint is used. `options` are further fields of ExportJob.

    Raises:
        InputError: no checkpoint there, no template, or `output` holds or lies in something else.
        VerificationFailed: the manifest of the import or of the training that it lies in says other bytes.
    """
    directory = checkpoint_dir(checkpoint.absolute())
    if template is not None:
        require_intact_input(template.absolute(), (IMPORT_KIND, EXPORT_KIND))
    template = template.absolute() if template else template_of(checkpoint.absolute())
    require_own_folder(output.absolute(), EXPORT_KIND, [directory, template])
    files = [f for f in directory.iterdir() if f.name == METADATA or f.suffix == ".distcp"]
    parameters = {
        "checkpoint": digests(files, directory, None),
        "template": digests(template_files(template)[0], template, None),
        "dtype": options.get("dtype"),
        "shard": options.get("max_shard_bytes", _SHARD_BYTES),
    }
    return ExportJob(
        name=checkpoint.name,
        id=artifact_id(EXPORT_KIND, STAGE_VERSION, [], parameters),
        output=output.absolute(),
        checkpoint=directory,
        template=template,
        inputs=_intact(checkpoint.absolute(), directory),
        **options,
    )


def template_of(checkpoint: Path) -> Path:
    """The `hf_template/` in or beside a checkpoint (an import's artifact, its `checkpoint/`, or the directory below).

    Raises:
        InputError: there is none.
    """
    for place in (checkpoint, *checkpoint.parents[:3]):
        if (place / "hf_template" / "config.json").is_file():
            return place / "hf_template"
    raise InputError(f"{checkpoint}: no hf_template/ beside the checkpoint; give --template, a Hugging Face directory")


def _intact(checkpoint: Path, directory: Path) -> tuple[ArtifactRef, ...]:
    """What the checkpoint is part of: a training's record of it, or an import's artifact."""
    run_dir = directory.parent.parent
    for record in run_dir.glob("kept/*.json"):
        try:
            manifest = read_manifest(record)
        except InputError:
            continue  # of another program
        if manifest.files and manifest.location and Path(os.path.normpath(run_dir / manifest.location)) == directory:
            require_intact(run_dir, manifest, memory_of(record))
            return (ArtifactRef(kind=manifest.kind, id=manifest.id, content=manifest.content),)
    return require_intact_input(checkpoint, (IMPORT_KIND,))


def _source_id(source: Path, cache: Path | None, chunk_bytes: int = CHUNK_BYTES) -> str:
    if not source.is_dir():
        raise InputError(f"{source}: no such directory; give a Hugging Face model directory")
    files = [*template_files(source)[0], *source.glob("*.safetensors"), *source.glob("*.safetensors.index.json")]
    parameters = {"files": digests(files, source, cache), "chunk_bytes": chunk_bytes}
    return artifact_id(IMPORT_KIND, STAGE_VERSION, [], parameters)


def _scratch_id(config: dict[str, Any], tokenizer: Path) -> str:
    if not tokenizer.exists():
        raise InputError(f"{tokenizer}: no such tokenizer; give a directory, tokenizer.json or a SentencePiece .model")
    files = template_files(tokenizer)[0] if tokenizer.is_dir() else [tokenizer]
    if not tokenizer.is_dir() and tokenizer.suffix != ".json" and (settings := tokenizer.with_name(SETTINGS)).is_file():
        files.append(settings)
    root = tokenizer if tokenizer.is_dir() else tokenizer.parent
    return artifact_id(IMPORT_KIND, STAGE_VERSION, [], {"config": config, "tokenizer": digests(files, root, None)})
