"""Which version a training follows: the last finished one of the same model and config."""

from collections.abc import Iterable, Iterator
from typing import Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact, read_manifest
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.store import Lake


def finished_versions(
    lake: Lake, model: str, training_config: str, on_event: OnEvent = ignore
) -> Iterator[tuple[int, Artifact]]:
    """Finished versions, the newest first; their files are not looked at.

    One whose manifest is damaged is passed over, which a ``warning`` tells.
    """
    for version in reversed(lake.versions(model, training_config)):
        directory = lake.version_dir(model, training_config, version).absolute()
        if (directory / MANIFEST).exists():
            try:
                manifest = read_manifest(directory / MANIFEST, "Put it back from a copy.")
            except InputError as error:
                on_event(event("warning", message=f"{error} Passed over, as if that run were not finished."))
            else:
                yield version, Artifact(directory, manifest)


def last_finished(lake: Lake, model: str, training_config: str) -> tuple[int, Manifest] | None:
    """The newest finished version and its manifest."""
    for version, artifact in finished_versions(lake, model, training_config):
        return version, artifact.manifest
    return None


def follows(finished: Iterable[tuple[int, Artifact]], version: int) -> dict[str, Any]:
    """For a version's manifest: number, id and content of the one before, under ``follows``; empty for a first one.

    Args:
        finished: ``finished_versions``.
        version: its number.
    """
    for number, artifact in finished:
        if number < version:
            return {"follows": {"version": f"v{number:04d}", "id": artifact.id, "content": artifact.content}}
    return {}
