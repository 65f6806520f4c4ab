"""The persistent Dagster instance of a project.

``python -m pamp_pipelines.orchestration.instance`` prepares DAGSTER_HOME and prints it, for `make dev`. PAMP_INSTANCE
chooses the template of its settings: ``laptop`` (SQLite, the default) or ``team`` (PostgreSQL).
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg

from pamp_pipelines.errors import InputError, install_command
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.publish import lock
from pamp_pipelines.orchestration.broken_home import opening, read_settings, telling_damage
from pamp_pipelines.project import Project

HOME = "DAGSTER_HOME"
CHOICE = "PAMP_INSTANCE"
TEMPLATES = ("laptop", "team")


def ensure_home(project: Project) -> Path:
    """Create DAGSTER_HOME with a dagster.yaml from the chosen template when it has none; returns the folder.

    Raises:
        InputError: no such template; the settings that are there are not the chosen ones, or cannot be used; or what
            they need is missing.
    """
    home = project.dagster_home.expanduser().resolve()
    chosen = os.environ.get(CHOICE) or None
    if chosen not in (None, *TEMPLATES):
        raise InputError(f"{CHOICE}={chosen}: there is no such template; use one of {', '.join(TEMPLATES)}.")
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    is_new = not settings.exists()
    if is_new:
        template = files("pamp_pipelines.orchestration") / "instances" / f"{chosen or 'laptop'}.yaml"
        write_text(settings, template.read_text())
    _require_usable(settings, chosen)
    if is_new:
        _open(home).dispose()
    return home


@contextlib.contextmanager
def open_instance(project: Project) -> Iterator[dg.DagsterInstance]:
    """The instance in DAGSTER_HOME: the same history that `dagster dev` shows.

    Raises:
        InputError: as ``ensure_home``; or its database is damaged, now or in the block, or does not answer.
    """
    home = ensure_home(project)
    before = os.environ.get(HOME)
    os.environ[HOME] = str(home)  # Dagster itself looks here, e.g. for compute logs
    try:
        with telling_damage(home), _open(home) as instance:
            yield instance
    finally:
        if before is None:
            os.environ.pop(HOME, None)
        else:
            os.environ[HOME] = before


def _open(home: Path) -> dg.DagsterInstance:
    """One process after the other: two that create the tables of a new SQLite database at once break one another."""
    with lock(home / "instance"), opening(home):
        return dg.DagsterInstance.from_config(str(home))


def _require_usable(settings: Path, chosen: str | None) -> None:
    loaded = read_settings(settings)
    postgres = "postgres" in (loaded.get("storage") or {})
    if chosen is not None and postgres != (chosen == "team"):
        raise InputError(
            f"{settings}: {CHOICE}={chosen} asks for {'PostgreSQL' if chosen == 'team' else 'SQLite'} and these "
            "settings say otherwise. They are never overwritten: edit them, choose another DAGSTER_HOME, or unset "
            f"{CHOICE}."
        )
    if missing := sorted({name for name in _variables(loaded) if name not in os.environ}):
        raise InputError(f"{settings}: set {', '.join(missing)} in the environment of every process of Dagster.")
    if postgres and find_spec("dagster_postgres") is None:
        raise InputError(f"{settings}: PostgreSQL needs `{install_command("-e '.[postgres]'")}`.")


def _variables(settings: Any) -> Iterator[str]:
    """Names in every ``{env: NAME}``."""
    if isinstance(settings, dict):
        if set(settings) == {"env"}:
            yield str(settings["env"])
        else:
            for value in settings.values():
                yield from _variables(value)


if __name__ == "__main__":
    try:
        print(ensure_home(Project.discover()))
    except InputError as problem:
        sys.exit(str(problem))
