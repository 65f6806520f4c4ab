"""The persistent Dagster instance of a project.

``python -m pamp_pipelines.orchestration.instance`` prepares DAGSTER_HOME and prints it, for `make dev`.
"""

import os
from importlib.resources import files
from pathlib import Path

import dagster as dg

from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.project import Project


def ensure_home(project: Project) -> Path:
    """Create DAGSTER_HOME with a dagster.yaml from the package's template when it has none; returns the folder."""
    home = project.dagster_home.expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        write_text(settings, (files("pamp_pipelines.orchestration") / "dagster.yaml").read_text())
    return home


def open_instance(project: Project) -> dg.DagsterInstance:
    """The instance in DAGSTER_HOME: the same history that `dagster dev` shows. Close it, or use it in a ``with``."""
    home = ensure_home(project)
    os.environ["DAGSTER_HOME"] = str(home)  # Dagster itself looks here, e.g. for compute logs
    return dg.DagsterInstance.from_config(str(home))


if __name__ == "__main__":
    print(ensure_home(Project.discover()))
