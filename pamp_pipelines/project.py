"""Where a project's files are: the only module that knows the top-level layout."""

import os
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.errors import InputError


@dataclass(frozen=True)
class Project:
    """A folder with ``workspace.yaml`` and ``assets/``."""

    root: Path

    @property
    def assets(self) -> Path:
        """What exists: YAML only."""
        return self.root / "assets"

    @property
    def resources(self) -> Path:
        """Where it runs: one compute profile a YAML file."""
        return self.root / "resources"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def lake(self) -> Path:
        """Root of all artifacts; ``PAMP_LAKE`` overrides it."""
        return Path(os.environ.get("PAMP_LAKE") or self.data / "lake")

    @property
    def dagster_home(self) -> Path:
        """Persistent Dagster instance; ``DAGSTER_HOME`` overrides it."""
        return Path(os.environ.get("DAGSTER_HOME") or self.data / "dagster_home")

    def resolve(self, path: str) -> Path:
        """A declared path: relative ones start at the project's root."""
        return Path(os.path.normpath(self.root / Path(path).expanduser()))

    @classmethod
    def discover(cls, start: Path | None = None) -> "Project":
        """Find the project: ``start``, ``PAMP_PROJECT``, upward from the current folder, the editable install's folder.

        Raises:
            InputError: nothing found; the message lists what was tried.
        """
        tried: list[Path] = []
        if explicit := start or os.environ.get("PAMP_PROJECT"):
            candidates = [Path(explicit).expanduser().resolve()]
        else:
            here = Path.cwd().resolve()
            candidates = [here, *here.parents, Path(__file__).resolve().parent.parent]
        for candidate in candidates:
            if (candidate / "workspace.yaml").is_file() and (candidate / "assets").is_dir():
                return cls(candidate)
            tried.append(candidate)
        raise InputError(
            "no project found: a project is a folder with workspace.yaml and assets/. Tried "
            + ", ".join(map(str, tried))
            + ". Change into the project, set PAMP_PROJECT, or pass --project."
        )
