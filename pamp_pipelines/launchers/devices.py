"""The GPUs of this machine, found without importing torch."""

import os
import shutil
import subprocess
from pathlib import Path


def gpus() -> list[str]:
    """Name and memory of each NVIDIA GPU that the driver lists; empty without a driver or with none visible."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1") or shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def may_have_gpus() -> bool:
    """False where there is surely none: a container may have GPUs without the tool that lists them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return False
    return bool(gpus()) or Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
