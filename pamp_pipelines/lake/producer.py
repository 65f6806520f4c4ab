"""Who made an artifact: versions, commit, kind of machine. Never names, paths or secrets."""

import functools
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pamp_pipelines import __version__

_LIBRARIES = (
    "torch",
    "megatron-core",
    "transformer-engine",
    "transformers",
    "tokenizers",
    "sentencepiece",
    "safetensors",
    "lm-eval",
    "dagster",
    "numpy",
)


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that decide results; absent ones are left out."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@functools.cache
def git_state() -> dict[str, Any]:
    """Commit of the source tree that runs and whether it has uncommitted changes; empty for an installed wheel."""
    commit = _git("rev-parse", "HEAD")
    return {"git_commit": commit, "git_dirty": bool(_git("status", "--porcelain"))} if commit else {}


@functools.cache
def producer() -> dict[str, Any]:
    """The ``producer`` entry of a manifest."""
    return {
        "pamp_pipelines": __version__,
        **git_state(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "libraries": library_versions(),
    }
