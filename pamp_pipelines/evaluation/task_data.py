"""Rows of tasks as ``datasets`` objects. Imported by the worker alone."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.sources import data_set_folder, split_files


class Splits(dict[str, Dataset]):
    """Splits by name. One that is not there is empty: lm-eval asks for all that a task names, used or not."""

    def __missing__(self, split: str) -> Dataset:
        first = next(iter(self.values()))
        return first.select([])


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file, plain or gzipped.

    Raises:
        InputError: names the line that is not a JSON object, or says that there is none.
    """
    rows = []
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise InputError(f"{path}:{number}: expected a JSON object, not {type(row).__name__}.")
                rows.append(row)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{number}: not JSON: {error}") from error
    if not rows:
        raise InputError(f"{path}: no rows, so there is nothing to score.")
    return rows


def read_splits(folder: Path) -> Splits:
    """All splits of a data set's folder."""
    return Splits({split: Dataset.from_list(read_rows(file)) for split, file in split_files(folder).items()})


@contextlib.contextmanager
def local_data_sets(root: Path | None) -> Iterator[None]:
    """Let ``datasets.load_dataset`` find ``owner/name`` below ``root`` before it looks in its cache or on the hub."""
    if root is None:
        yield
        return
    load = datasets.load_dataset

    def local(path: str, name: str | None = None, **arguments: Any) -> Any:
        folder = data_set_folder(root, path, name)
        return read_splits(folder) if folder else load(path, name, **arguments)

    datasets.load_dataset = local
    try:
        yield
    finally:
        datasets.load_dataset = load


def rows_sha256(rows: Any) -> str:
    """Hash over the rows that a task scores, for data that came from the hub or its cache."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()
