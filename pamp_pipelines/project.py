"""Where a project's files are: the only module that knows the top-level layout."""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.text import size_of
from pamp_pipelines.urls import redacted, require_no_credentials

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


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
        """Root of all artifacts; ``PAMP_LAKE`` overrides it: a path, from the project's root where relative, or a URL.

        Where that is a URL, the working directory for it: ``PAMP_LAKE_CACHE``, else one below ``data/`` for each URL.

        Raises:
            InputError: it looks like a URL and is none, or holds credentials.
        """
        setting = _lake_setting()
        if (url := self.lake_url) is None:
            return self.resolve(setting) if setting else self.data / "lake"
        name = f"{re.sub(r'[^a-zA-Z0-9.]+', '-', url)[:60]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        cache = os.environ.get("PAMP_LAKE_CACHE")
        return self.resolve(cache) if cache else self.data / "lakes" / name

    @property
    def lake_url(self) -> str | None:
        """The fsspec URL of a remote lake, without a slash at its end; None for a lake on a file system.

        Raises:
            InputError: it looks like a URL and is none, or holds credentials.
        """
        setting = _lake_setting()
        return setting if "://" in setting else None

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
        if (size := size_of(text)) is None:
            raise InputError(f"PAMP_LAKE_CACHE_BYTES={text!r}: no size; give bytes, or e.g. 500GB")
        return size

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


def _lake_setting() -> str:
    """``PAMP_LAKE`` as a path or as a URL with a scheme in lower case; empty where it is not set."""
    given = os.environ.get("PAMP_LAKE", "")
    text = require_no_credentials(given.strip(), "PAMP_LAKE")
    if given and not text:
        raise InputError(f"PAMP_LAKE={given!r}: is blank; give a folder or a URL such as s3://bucket/lake, or unset it")
    scheme, found, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme == "file" and found:
        if not rest.startswith("/"):
            raise InputError(
                f"PAMP_LAKE={text!r}: is no absolute path; write file:///{rest or 'path'}, or the path alone"
            )
        return rest
    if found:
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*(::[a-z][a-z0-9+.-]*)*", scheme):
            raise InputError(f"PAMP_LAKE={text!r}: {scheme!r} is no scheme of a URL; write e.g. s3://bucket/lake")
        if not rest.strip("/"):
            raise InputError(f"PAMP_LAKE={text!r}: names no bucket; write e.g. s3://bucket/lake")
        return f"{scheme}://{rest.rstrip('/')}"
    if _SCHEME.match(text):
        raise InputError(
            f"PAMP_LAKE={redacted(text)!r}: looks like a URL and is none; write e.g. s3://bucket/lake, or for a folder "
            "its absolute path"
        )
    return text
