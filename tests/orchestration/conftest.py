"""The tiny project's definitions, and a run's context on an instance that lives in memory."""

from collections.abc import Iterator

import dagster as dg
import pytest

from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.project import Project


@pytest.fixture(scope="session")
def definitions(tiny_project: Project) -> dg.Definitions:
    return build_definitions(tiny_project)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance
