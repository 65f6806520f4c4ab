"""Where a project's files are: the only module that knows the top-level layout."""

import hashlib
import os
import re
import shutil
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
        """Root of all artifacts; ``PAMP_LAKE`` overrides it.

        Where that is a URL, the working directory for it: ``PAMP_LAKE_CACHE``, else one below ``data/`` for each URL.
        """
        if (url := self.lake_url) is None:
            return Path((os.environ.get("PAMP_LAKE") or str(self.data / "lake")).removeprefix("file://"))
        name = f"{re.sub(r'[^a-zA-Z0-9.]+', '-', url)[:60]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        return Path(os.environ.get("PAMP_LAKE_CACHE") or self.data / "lakes" / name)

    @property
    def lake_url(self) -> str | None:
        """The fsspec URL of a remote lake, without a slash at its end; None for a lake on a file system."""
        url = os.environ.get("PAMP_LAKE", "")
        return url.rstrip("/") if "://" in url and not url.startswith("file://") else None

    @property
    def lake_budget(self) -> int:
        """Bytes that payload of a remote lake may take here: ``PAMP_LAKE_CACHE_BYTES``, else half of the disk.

        Raises:
            InputError: it is no size.
        """
        text = os.environ.get("PAMP_LAKE_CACHE_BYTES", "")
        if not text:
            place = self.lake
            while not place.exists():
                place = place.parent
            return shutil.disk_usage(place).total // 2
        match = re.fullmatch(r"([0-9]{1,18}|[0-9]{1,18}\.[0-9]*)([kmgt]?)b?", text.strip().lower().replace(" ", ""))
        if match is None:
            raise InputError(f"PAMP_LAKE_CACHE_BYTES={text!r}: no size; give bytes, or e.g. 500GB")
        return int(float(match[1]) * 1000 ** ("", "k", "m", "g", "t").index(match[2]))

    @property
    def dagster_home(self) -> Path:
        """Persistent Dagster instance; ``DAGSTER_HOME`` overrides it."""
        return Path(os.environ.get("DAGSTER_HOME") or self.data / "dagster_home")

    def resolve(self, path: str) -> Path:
        """A declared path: relative ones start at the project's root."""
        return Path(os.path.normpath(self.root / Path(path).expanduser()))

    @classmethod
    def discover(cls, start: Path | None = None) -> "Project":
        """Find the project: ``start``, ``PAMP_PROJECT``, upward from the current folder.

        Never the folder that this package is installed from: who is outside all projects has named none.

        Raises:
            InputError: nothing found; the message lists what was tried.
        """
        tried: list[Path] = []
        if explicit := start or os.environ.get("PAMP_PROJECT"):
            candidates = [Path(explicit).expanduser().resolve()]
        else:
            here = Path.cwd().resolve()
            candidates = [here, *here.parents]
        for candidate in candidates:
            if (candidate / "workspace.yaml").is_file() and (candidate / "assets").is_dir():
                return cls(candidate)
            tried.append(candidate)
        raise InputError(
            "no project found: a project is a folder with workspace.yaml and assets/. Tried "
            + ", ".join(map(str, tried))
            + ". Change into the project, set PAMP_PROJECT to its folder, or pass --project DIR."
        )
