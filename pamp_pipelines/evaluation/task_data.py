"""Rows of tasks as ``datasets`` objects. Imported by the worker alone."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow
from datasets import Dataset

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.sources import data_set_folder, split_files

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""What may be half of a surrogate pair."""


class Splits(dict[str, Dataset]):
    """Splits by name. One that is not there is empty: lm-eval asks for all that a task names, used or not."""

    def __missing__(self, split: str) -> Dataset:
        first = next(iter(self.values()))
        return first.select([])


def numbered_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a JSON-lines file, plain or gzipped, with the numbers of their lines from 1.

    Raises:
        InputError: names the line that is not a JSON object of Unicode text, or says that there is none.
    """
    number = found = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise InputError(f"{path}:{number}: expected a JSON object, not {type(row).__name__}.")
                if _SURROGATE.search(line):
                    _check_text(row, f"{path}:{number}")
                found += 1
                yield number, row
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{number}: not JSON: {error}") from error
    if not found:
        raise InputError(f"{path}: no rows, so there is nothing to score.")


def _check_text(row: dict[str, Any], where: str) -> None:
    """JSON can hold halves of surrogate pairs, which no file can be written with."""
    for name, value in row.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{where}: {name!a} holds half of a surrogate pair ({error.object[error.start]!a}), which is "
                "no text: correct or remove the row."
            ) from None


def data_set(files: Sequence[Path]) -> Dataset:
    """All rows of files, in their order; a field that a row lacks is empty.

    Raises:
        InputError: see ``numbered_rows``; or a field has values of several types.
    """
    rows = [(file, number, row) for file in files for number, row in numbered_rows(file)]
    try:
        # datasets itself drops fields that the first row lacks.
        empty = dict.fromkeys(name for *_, row in rows for name in row)
        return Dataset.from_list([empty | row for *_, row in rows])
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        types: dict[str, type] = {}
        for file, number, row in rows:
            for name, value in row.items():
                first = types.setdefault(name, type(value)) if value is not None else None
                if first not in (None, type(value)):
                    raise InputError(
                        f"{file}:{number}: {name!r} is {type(value).__name__}, and {first.__name__} in rows before: a "
                        "field of a task's data has one type."
                    ) from error
        raise InputError(f"{files[0]}: these rows are no table: {error}") from error


def read_splits(folder: Path) -> Splits:
    """All splits of a data set's folder."""
    return Splits({split: data_set([file]) for split, file in split_files(folder).items()})


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
