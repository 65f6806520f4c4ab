"""Which version a training follows: the last finished one of the same model and config."""

from typing import Any

from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.store import Lake


def last_finished(
    lake: Lake, model: str, training_config: str, before: int | None = None
) -> tuple[int, Manifest] | None:
    """The newest finished version, below ``before`` where that is given, and its manifest."""
    for version in reversed(lake.versions(model, training_config)):
        directory = lake.version_dir(model, training_config, version)
        if (before is None or version < before) and (directory / MANIFEST).is_file():
            return version, read_artifact(directory, verify="none").manifest
    return None


def follows(lake: Lake, model: str, training_config: str, version: int) -> dict[str, Any]:
    """For a version's manifest: number, id and content of the one before, under ``follows``; empty for a first one."""
    found = last_finished(lake, model, training_config, before=version)
    if found is None:
        return {}
    number, manifest = found
    return {"follows": {"version": f"v{number:04d}", "id": manifest.id, "content": manifest.content}}
