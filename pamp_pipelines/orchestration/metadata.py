"""What the UI shows about an artifact: everything that leads from a number back to where it came from."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.lake.mirror import uri_of
from pamp_pipelines.lake.publication import published
from pamp_pipelines.orchestration.checks import check_results, verdict_table
from pamp_pipelines.orchestration.recording import record
from pamp_pipelines.orchestration.values import table, to_metadata
from pamp_pipelines.orchestration.versions import asset_key

MAX_PICTURE_BYTES = 100_000
"""Pictures are kept in the event log, so larger ones are only linked."""

ROW_COUNTS = ("rows", "documents_written", "documents")
"""Statistics that count the rows of an artifact, the most specific first."""


def result(
    artifact: Artifact, details: Mapping[str, Any] | None = None, *, asset: str | None = None
) -> dg.MaterializeResult:
    """The materialisation of an artifact: its data version is the hash of its content.

    In a remote lake it is published first: what Dagster shows, others can read. That it is shown is recorded in the
    lake.

    Args:
        artifact: what the stage returned.
        details: metadata of this asset only, shown before and taken over what every artifact has.
        asset: asset key with slashes; default: the artifact's kind.
    """
    key = asset or artifact.kind
    published(artifact)
    record(key, artifact)
    return dg.MaterializeResult(
        asset_key=asset_key(key),
        data_version=dg.DataVersion(artifact.content),
        metadata=all_metadata(artifact, details or {}),
        check_results=check_results(key, artifact.manifest),
    )


def all_metadata(artifact: Artifact, details: Mapping[str, Any]) -> dict[str, Any]:
    """Details first, and over what every artifact has."""
    return {**details, **artifact_metadata(artifact), **details}


def artifact_metadata(artifact: Artifact) -> dict[str, Any]:
    return {
        **manifest_metadata(artifact.manifest),
        **_links(artifact.path, artifact.kind),
        **_pictures(artifact),
    }


def manifest_metadata(manifest: Manifest) -> dict[str, Any]:
    """Counts, verdicts, origin. The order is the order of the UI."""
    rows = next((manifest.stats[name] for name in ROW_COUNTS if name in manifest.stats), None)
    metadata = {
        **to_metadata(flatten(manifest.stats)),
        **({"dagster/row_count": int(rows)} if rows is not None else {}),
        "artifact_bytes": sum(file.bytes for file in manifest.files),
        "artifact_id": manifest.id,
        "created": manifest.created,
        "git_commit": _commit(manifest.producer),
        **({"declaration": dg.MetadataValue.json(manifest.declaration)} if manifest.declaration else {}),
        "producer": dg.MetadataValue.json(manifest.producer),
    }
    if manifest.inputs:
        metadata["inputs"] = table([{"kind": i.kind, "id": i.id, "content": i.content} for i in manifest.inputs])
    if manifest.checks:
        metadata["verdicts"] = verdict_table(manifest.checks)
    return metadata


def flatten(stats: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested counts by dotted name, so that each is a number of its own: ``train.tokens``."""
    flat: dict[str, Any] = {}
    for name, value in stats.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _commit(producer: Mapping[str, Any]) -> str:
    commit = producer.get("git_commit") or "not from a git checkout"
    return f"{commit} with uncommitted changes" if producer.get("git_dirty") else str(commit)


def place(path: Path, kind: str) -> dict[str, Any]:
    """Where an artifact is; in a remote lake its URL, and as ``staged`` its folder on this machine."""
    if (url := uri_of(path, kind)) is None:
        return {"dagster/uri": dg.MetadataValue.path(str(path))}
    return {"dagster/uri": dg.MetadataValue.text(url), "staged": dg.MetadataValue.path(str(path))}


def _links(path: Path, kind: str) -> dict[str, Any]:
    """Places to go on from; only those that exist."""
    links = place(path, kind)
    if (path / "tensorboard").is_dir():
        links["tensorboard"] = dg.MetadataValue.md(f"`tensorboard --logdir {path / 'tensorboard'}`")
    for name, file in {"report": "index.html", "metrics": "metrics.jsonl", "samples": "samples.jsonl"}.items():
        if (path / file).is_file():
            links[name] = dg.MetadataValue.path(str(path / file))
    return links


def picture(name: str, png: bytes) -> dg.MetadataValue:
    """A PNG inside the event log."""
    return dg.MetadataValue.md(f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})")


def _pictures(artifact: Artifact) -> dict[str, Any]:
    return {
        Path(file.path).stem: picture(file.path, (artifact.path / file.path).read_bytes())
        for file in artifact.manifest.files
        if file.path.endswith(".png") and file.bytes <= MAX_PICTURE_BYTES
    }
