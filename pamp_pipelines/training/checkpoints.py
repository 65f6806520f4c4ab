"""The checkpoints of one run on disk: which are complete, and what a killed process left behind. Needs no torch."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from pamp_pipelines.lake.atomic import write_text

TRACKER = "latest_checkpointed_iteration.txt"
_NAME = re.compile(r"iter_(\d{7,})")


def checkpoint_path(directory: Path, iteration: int) -> Path:
    """Where Megatron writes the checkpoint of an iteration."""
    return directory / f"iter_{iteration:07d}"


def tracked_iteration(directory: Path) -> int | None:
    """The iteration that Megatron's tracker names; None without tracker, and for one that holds no iteration."""
    try:
        text = (directory / TRACKER).read_text("utf-8").strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() else None


def is_complete(path: Path) -> bool:
    """Whether a ``torch_dist`` checkpoint was written to its end.

    Every rank writes its ``.distcp`` files, then the first writes ``.metadata`` (by rename), then ``metadata.json``:
    a whole ``metadata.json`` is the last thing that appears.
    """
    try:
        described = json.loads((path / "metadata.json").read_bytes())
        written = (path / ".metadata").stat().st_size > 0
    except (OSError, ValueError):
        return False
    return written and isinstance(described, dict) and any(path.glob("*.distcp"))


def complete_iterations(directory: Path) -> list[int]:
    """Iterations of all complete checkpoints, in ascending order."""
    return sorted(iteration for iteration, path in _all(directory) if is_complete(path))


def recover(directory: Path) -> int | None:
    """Bring a run's checkpoints into a state from which Megatron resumes; to be called while no process writes.

    Removes checkpoints that a killed process left incomplete, and makes the tracker name the newest complete one:
    Megatron writes the tracker in place, after the checkpoint, and ends with exit status 0 when it is empty.

    Returns:
        The iteration to resume from; None when there is none.
    """
    for _, path in _all(directory):
        if not is_complete(path):
            shutil.rmtree(path)
    newest = max(complete_iterations(directory), default=None)
    if newest is None:
        (directory / TRACKER).unlink(missing_ok=True)
    elif tracked_iteration(directory) != newest:
        write_text(directory / TRACKER, str(newest))
    return newest


def _all(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    named = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    return [(int(match[1]), path) for match, path in named if match and path.is_dir()]
