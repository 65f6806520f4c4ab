"""Facts about this machine, found without importing torch: versions, GPUs, disk, Dagster's home."""

import importlib.metadata
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.megatron_flags import megatron_version
from pamp_pipelines.launchers.devices import gpus
from pamp_pipelines.project import Project

_PACKAGES = (
    *("pamp-pipelines", "torch", "megatron-core", "transformer-engine", "transformers", "lm-eval", "dagster", "numpy"),
    *("safetensors", "tokenizers"),
)
_LOW_DISK_GB = 10.0


def environment_facts(project: Project) -> dict[str, Any]:
    """Versions (None where a package is not installed), GPUs, cores, memory, free disk of the lake, DAGSTER_HOME."""
    import psutil

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {package: _version(package) for package in _PACKAGES},
        "gpus": gpus(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "lake": project.lake_url or str(project.lake),
        "disk_free_gb": round(shutil.disk_usage(_existing(project.lake)).free / 1e9, 1),
        "dagster_home": str(project.dagster_home),
    }


def environment_warnings(project: Project, facts: dict[str, Any]) -> list[str]:
    """What will surprise later."""
    warnings = []
    if facts["disk_free_gb"] < _LOW_DISK_GB:
        warnings.append(f"only {facts['disk_free_gb']} GB are free for {facts['lake']}; checkpoints need room")
    home = project.dagster_home.expanduser().resolve()
    temporary = Path(tempfile.gettempdir()).resolve()
    if home.is_relative_to(temporary):
        warnings.append(f"DAGSTER_HOME {home} is in {temporary}: the history of runs will be lost. Set it elsewhere.")
    if not os.environ.get("DAGSTER_HOME"):
        warnings.append(f"DAGSTER_HOME is not set: {home} is used; `dagster` commands of your own need it exported")
    installed = facts["packages"]["megatron-core"]
    if installed is None:
        warnings.append("megatron-core is not installed: training and parity need Linux, or a Linux container")
    elif installed != megatron_version():
        message = f"megatron_args are checked against Megatron {megatron_version()}, but {installed} is installed"
        warnings.append(f"{message}: run `python -m pamp_pipelines.training.flags`")
    if facts["gpus"] and facts["packages"]["transformer-engine"] is None:
        warnings.append("GPUs without Transformer Engine: training on them needs it, see README")
    return warnings


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    """The path or its nearest parent that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())
