"""Records of kept checkpoints: ``kept/<step>.json``, a manifest of kind ``checkpoint``.

A record is written when the checkpoint is complete and never changes. Step 0 of an imported model has one too, which
points to the import, so that "before" is scored by the same path as everything after.

``content`` covers what was learned: the iteration and every tensor, weights and optimizer state. Equal runs have equal
content in whatever lake and version, at one go or resumed. ``files`` hold the hash of each file, which is not so:
Megatron stores its arguments beside the tensors, with absolute paths.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.tensor_hash import tensors_hash
from pamp_pipelines.conversion.torch_dist import read_checkpoint
from pamp_pipelines.errors import InputError, MissingInput
from pamp_pipelines.lake.artifact import read_artifact, read_manifest, verify_files
from pamp_pipelines.lake.atomic import fsync_dir, fsync_file, write_text
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.integrity import memory_of, remember, require_intact, require_intact_artifact
from pamp_pipelines.lake.manifest import MANIFEST, ArtifactRef, FileEntry, Manifest, artifact_id
from pamp_pipelines.lake.producer import producer
from pamp_pipelines.lake.publish import utc_now
from pamp_pipelines.lake.sharing import share
from pamp_pipelines.lake.staging import obtainable
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import read_metrics
from pamp_pipelines.training.saved import Saved

KIND = "checkpoint"
STAGE_VERSION = 2
_REPAIR = (
    "Put the record back from a copy. Without one: a run that goes on writes it anew while it has the checkpoint; of a "
    "run without manifest.json it can be deleted, and the checkpoint is kept no more; a finished run stays damaged, so "
    "train another version with `pamp train MODEL CONFIG --fresh`."
)


def record_path(run_dir: Path, step: int) -> Path:
    return run_dir / "kept" / f"{step:07d}.json"


def recorded_steps(run_dir: Path) -> list[int]:
    """Steps that have a record, oldest first; a file of another name is none."""
    steps = {int(file.stem) for file in (run_dir / "kept").glob("*.json") if file.stem.isdecimal()}
    return sorted(step for step in steps if record_path(run_dir, step).is_file())


def read_record(run_dir: Path, step: int) -> Manifest:
    """The record of a step, its ``location`` made absolute: on storage it is relative, so that a lake can be moved.

    Raises:
        InputError: no such record, or it is not readable.
    """
    record = record_path(run_dir, step)
    manifest = read_manifest(record, _REPAIR)
    if manifest.location is None:
        raise InputError(f"{record}: names no location. {_REPAIR}")
    return manifest.model_copy(update={"location": os.path.normpath(run_dir / manifest.location)})


def read_kept(lake: Lake, key: CheckpointKey) -> Manifest:
    """The manifest of a kept checkpoint; its ``location`` is the absolute directory that holds ``.metadata``.

    Raises:
        MissingInput: there is no such checkpoint; names those that the version has.
        VerificationFailed: its files are missing or of another size.
    """
    run_dir = lake.version_dir(key.model, key.training_config, key.version)
    if not record_path(run_dir, key.step).is_file():
        known = ", ".join(map(str, recorded_steps(run_dir))) or "none"
        raise MissingInput(
            "pretrained_checkpoint", f"{key.model}|{key.training_config}", f"No checkpoint {key}; kept steps: {known}."
        )
    manifest = read_record(run_dir, key.step)
    verify_files(run_dir, manifest)
    assert manifest.location is not None
    if not _obtainable(run_dir, manifest, Path(manifest.location)):
        raise InputError(f"{manifest.location}: the checkpoint that {key} points to is gone; materialise it again.")
    return manifest


def _obtainable(run_dir: Path, record: Manifest, location: Path) -> bool:
    """Whether the checkpoint is here or, in a remote lake, published."""
    if (location / ".metadata").is_file():
        return True
    if record.files:
        return obtainable(run_dir, record)
    imported = location.parents[1]  # step 0 of an import: <artifact>/checkpoint/release
    return (imported / MANIFEST).is_file() and obtainable(imported, read_manifest(imported / MANIFEST))


def read_intact(lake: Lake, key: CheckpointKey) -> Manifest:
    """``read_kept``, and the files have the content that they were recorded with.

    Raises:
        MissingInput, InputError, VerificationFailed: as ``read_kept``; the last also for damaged content.
    """
    manifest = read_kept(lake, key)
    assert manifest.location is not None
    if manifest.files:
        run_dir = lake.version_dir(key.model, key.training_config, key.version)
        require_intact(run_dir, manifest, memory_of(record_path(run_dir, key.step)))
    else:  # step 0 of an import, whose files are that artifact's: <artifact>/checkpoint/release
        require_intact_artifact(read_artifact(Path(manifest.location).parents[1]))
    return manifest


def record_import(job: TrainJob, checkpoint: Path, source: ArtifactRef) -> Manifest:
    """Record step 0 of an imported model; its payload stays where the import is."""
    return _write(
        job, 0, checkpoint, files=(), content=source.content, inputs=(source,), stats={"step": 0, "tokens": 0}
    )


def record_saved(job: TrainJob, step: int) -> Manifest:
    """Record a complete checkpoint of the run. Files are synced to the disk before the record names them.

    Raises:
        InputError: a payload of it is damaged.
    """
    directory = Saved(job.checkpoints_dir).dir(step)
    files = tuple(_hashed(directory, job.run_dir))
    stats: dict[str, Any] = {"step": step, "tokens": step * job.tokens_per_iteration}
    for entry in read_metrics(job.metrics_path):
        if entry["iteration"] == step:
            stats |= {name: entry[name] for name in ("loss", "validation_loss") if name in entry}
    content = tensors_hash(read_checkpoint(directory), step)
    return _write(job, step, directory, files=files, content=content, inputs=job.inputs, stats=stats)


def _hashed(directory: Path, run_dir: Path) -> list[FileEntry]:
    def entry(file: Path) -> FileEntry:
        fsync_file(file)
        name = file.relative_to(run_dir).as_posix()
        return FileEntry(path=name, bytes=file.stat().st_size, sha256=sha256_file(file))

    paths = sorted(f for f in directory.rglob("*") if f.is_file())
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        entries = list(pool.map(entry, paths))
    fsync_dir(directory)
    return entries


def _write(
    job: TrainJob,
    step: int,
    location: Path,
    *,
    files: tuple[FileEntry, ...],
    content: str,
    inputs: tuple[ArtifactRef, ...],
    stats: dict[str, Any],
) -> Manifest:
    manifest = Manifest(
        kind=KIND,
        id=artifact_id(KIND, STAGE_VERSION, [job.id], {"run": job.name, "step": step}),
        content=content,
        created=utc_now(),
        inputs=inputs,
        declaration=job.declaration,
        producer=producer(),
        files=files,
        stats=stats,
        location=os.path.relpath(location, job.run_dir),
    )
    record = record_path(job.run_dir, step)
    write_text(record, manifest.model_dump_json(indent=2) + "\n")
    share(record.parent)
    remember(job.run_dir, manifest, memory_of(record))
    return read_record(job.run_dir, step)
