"""The tiny project's definitions, and a run's context on an instance that lives in memory."""

import os
import time
from collections.abc import Callable, Iterator

import dagster as dg
import pytest

from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.manifest import FileEntry, Manifest
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.project import Project
from tests.s3_server import _s3_server, machines, s3

__all__ = ["_s3_server", "machines", "s3"]


@pytest.fixture(scope="session")
def definitions(tiny_project: Project) -> dg.Definitions:
    return build_definitions(tiny_project)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def kept_checkpoint(own_project: Project) -> Callable[[str, float], None]:
    """Writes the record of a kept checkpoint, so many seconds ago, with a file of its own."""

    def write(key: str, age_s: float) -> None:
        parsed = CheckpointKey.parse(key)
        record = Lake(own_project.lake).kept_record(parsed)
        payload = record.parent.parent / "checkpoints" / f"iter_{parsed.step:07d}"
        payload.mkdir(parents=True)
        (payload / ".metadata").write_bytes(b"metadata")
        entry = FileEntry(path=f"checkpoints/{payload.name}/.metadata", bytes=8, sha256="")
        manifest = Manifest(
            kind="checkpoint",
            id=key,
            content=f"content of {key}",
            created="2026-01-01T00:00:00Z",
            files=(entry,),
            stats={"step": parsed.step},
            location=f"checkpoints/{payload.name}",
        )
        write_text(record, manifest.model_dump_json())
        os.utime(record, (time.time() - age_s,) * 2)

    return write
