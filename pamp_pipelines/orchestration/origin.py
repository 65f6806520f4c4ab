"""Where a run that is executed in this process would come from had the UI launched it.

Dagster gives such runs no origin, and can then not execute them again: not by the button, not by its daemon. The
classes of an origin are internal to Dagster; `tests/orchestration/test_origin.py` holds them to their use.
"""

import contextvars

import dagster as dg
from dagster._core.remote_origin import RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths

from pamp_pipelines.project import Project

MODULE = "pamp_pipelines.definitions"
REPOSITORY = "__repository__"
"""What Dagster calls the repository of a code location that is a plain ``Definitions``."""
_REPOSITORY_TAG = ".dagster/repository"

origin: contextvars.ContextVar[RemoteJobOrigin | None] = contextvars.ContextVar("origin", default=None)
"""Set while this process executes runs by itself."""


def origin_in(project: Project, job: str) -> RemoteJobOrigin | None:
    """Origin of a job of this project's code location; None when its workspace.yaml has none for this package."""
    for location in location_origins_from_yaml_paths([str(project.root / "workspace.yaml")]):
        target = getattr(location, "loadable_target_origin", None)
        if target is not None and target.module_name == MODULE:
            return RemoteJobOrigin(RemoteRepositoryOrigin(location, REPOSITORY), job)
    return None


def adopt(instance: dg.DagsterInstance, run_id: str) -> None:
    """Give a run that has none the origin of this process's runs: at its start, since it may be killed."""
    found = origin.get()
    run = instance.get_run_by_id(run_id)
    if found is None or run is None or run.remote_job_origin is not None:
        return
    instance.add_run_tags(run_id, {_REPOSITORY_TAG: found.repository_origin.get_label()})
    if (tagged := instance.get_run_by_id(run_id)) is not None:
        instance.run_storage.replace_job_origin(tagged, found)
