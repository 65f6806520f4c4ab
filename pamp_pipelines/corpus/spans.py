"""Cutting a corpus into pieces of work that are read independently, the same ones for any number of workers."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.corpus.compression import compression_of, damage_errors
from pamp_pipelines.corpus.readers import ReadingRules, damaged
from pamp_pipelines.corpus.sources import SourceFile, is_remote, open_source


class Span(BaseModel):
    """A part of a file.

    Attributes:
        file: index of the file in the corpus.
        start, end: bytes (jsonl: the lines that begin in this range) or row groups (parquet); ``end`` None: the whole
            file, which cannot be entered in the middle.
    """

    model_config = ConfigDict(frozen=True)

    file: int
    start: int = 0
    end: int | None = None


Task = tuple[Span, ...]
"""What one worker does before it leaves a completion marker."""


def plan_tasks(files: Sequence[SourceFile], rules: ReadingRules, task_bytes: int) -> list[Task]:
    """Tasks of some ``task_bytes`` each, in the order of the corpus.

    Large uncompressed JSONL files are cut into byte ranges and Parquet files into row groups; files that are compressed
    as a whole, text files and files behind a URL are taken whole; small ones share a task.
    """
    tasks: list[Task] = []
    task: list[Span] = []
    size = 0
    for index, file in enumerate(files):
        for span, span_bytes in _spans(index, file, rules, task_bytes):
            if task and size + span_bytes > task_bytes:
                tasks.append(tuple(task))
                task, size = [], 0
            task.append(span)
            size += span_bytes
    return [*tasks, tuple(task)] if task else tasks


def _spans(index: int, file: SourceFile, rules: ReadingRules, task_bytes: int) -> list[tuple[Span, int]]:
    whole = [(Span(file=index), file.bytes)]
    if is_remote(file.url) or compression_of(file.name) or file.bytes <= task_bytes:
        return whole
    match rules.format:
        case "jsonl" if rules.encoding == "utf-8":
            starts = range(0, file.bytes, task_bytes)
            ends = [*starts[1:], file.bytes]
            return [(Span(file=index, start=a, end=b), b - a) for a, b in zip(starts, ends, strict=True)]
        case "parquet":
            return [
                (Span(file=index, start=group, end=group + 1), size) for group, size in enumerate(_row_groups(file))
            ]
    return whole


def _row_groups(file: SourceFile) -> list[int]:
    """Bytes of each row group, decompressed."""
    import pyarrow.parquet as pq

    try:
        with open_source(file.url) as raw:
            metadata = pq.ParquetFile(raw).metadata
            return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    except damage_errors() as error:
        raise damaged(file, error) from error
