"""Names in the directory that Megatron saves to. Needs no torch."""

from __future__ import annotations

from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"


def checkpoint_path(directory: Path, iteration: int) -> Path:
    """Where Megatron writes the checkpoint of an iteration."""
    return directory / f"iter_{iteration:07d}"


def tracked_iteration(directory: Path) -> int | None:
    """The iteration that Megatron's tracker names; None without tracker, and for one that holds no iteration."""
    try:
        text = (directory / TRACKER).read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() else None
