"""Reading a span of a corpus at the speed of its parser: lists of texts instead of an object for each document."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import orjson

from pamp_pipelines.corpus.compression import compression_of, damage_errors
from pamp_pipelines.corpus.readers import (
    BLANK,
    Absent,
    Document,
    Dropped,
    Head,
    ReadingRules,
    as_document,
    damaged,
    follow,
    parquet_columns,
    parquet_document,
    parse_line,
    read_documents,
    stop_at,
    without_mark,
)
from pamp_pipelines.corpus.recoding import decompressed
from pamp_pipelines.corpus.sources import SourceFile, open_source
from pamp_pipelines.corpus.spans import Span


@dataclass(slots=True)
class Batch:
    """Some rows in order.

    Attributes:
        texts: the documents.
        fields: values of the further fields that were asked for, one list a document; empty if none were.
        dropped: the rows that are no documents.
    """

    texts: list[str] = field(default_factory=list)
    fields: list[list[Any]] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)


def read_batches(
    file: SourceFile, rules: ReadingRules, span: Span, batch_bytes: int, fields: Sequence[str] = ()
) -> Iterator[Batch]:
    """The rows of ``span``, some ``batch_bytes`` at a time: the same documents and drops as ``read_documents``.

    Args:
        fields: further fields to read, None where a row lacks one.

    Raises:
        InputError: as ``read_documents``.
    """
    lines_before = 0
    try:
        with open_source(file.url) as raw:
            for batch in _batches(raw, file, rules, span, batch_bytes, fields):
                for row in batch.dropped:
                    if row.reason != "empty" and rules.on_error == "stop" and rules.format == "jsonl" and span.start:
                        lines_before = _lines_before(file, span.start)
                    stop_at(row, rules, lines_before)
                yield batch
    except damage_errors() as error:
        raise damaged(file, error) from error


def _batches(
    raw: BinaryIO, file: SourceFile, rules: ReadingRules, span: Span, batch_bytes: int, fields: Sequence[str]
) -> Iterator[Batch]:
    match rules.format:
        case "jsonl":
            yield from _jsonl(raw, file, rules, span, batch_bytes, fields)
        case "parquet" if not compression_of(file.name):
            groups = None if span.end is None else range(span.start, span.end)
            yield from _parquet(raw, file, rules, groups, batch_bytes, fields)
        case _:
            for row in read_documents(file, rules):
                yield Batch([row.text]) if isinstance(row, Document) else Batch(dropped=[row])


def _jsonl(
    raw: BinaryIO, file: SourceFile, rules: ReadingRules, span: Span, batch_bytes: int, fields: Sequence[str]
) -> Iterator[Batch]:
    paths = [name.split(".") for name in (rules.text_field, *fields)]
    plain = rules.text_field if len(paths) == 1 and len(paths[0]) == 1 else None
    index = 0
    for block in _line_blocks(raw, file, rules, span, batch_bytes):
        batch = Batch()
        append, loads = batch.texts.append, orjson.loads
        lines = block.split(b"\n")
        for number, line in enumerate(lines, index):
            if plain is not None:
                try:
                    text = loads(line)[plain]
                except Exception:  # whatever it is, the slow way has a name for it
                    text = None
                # orjson lets no lone surrogate pass
                if text.__class__ is str and text:
                    append(text)
                    continue
            _slow_row(batch, line, file.name, number, rules.text_field, paths)
        index += len(lines) - block.endswith(b"\n")
        yield batch


def _slow_row(batch: Batch, line: bytes, name: str, index: int, field: str, paths: Sequence[Sequence[str]]) -> None:
    record = parse_line(line, name, index)
    if record is BLANK:
        return
    row = record if isinstance(record, Dropped) else as_document(follow(record, paths[0]), field, name, index)
    if isinstance(row, Dropped):
        batch.dropped.append(row)
        return
    batch.texts.append(row.text)
    if len(paths) > 1:
        values = [follow(record, path) for path in paths[1:]]
        batch.fields.append([None if isinstance(value, Absent) else value for value in values])


def _line_blocks(raw: BinaryIO, file: SourceFile, rules: ReadingRules, span: Span, batch_bytes: int) -> Iterator[bytes]:
    """Whole lines, some ``batch_bytes`` at once, and never beyond the size that the file was pinned with."""
    if span.end is None:
        stream: BinaryIO = decompressed(cast(BinaryIO, Head(raw, file.bytes)), file.name, rules.encoding)
        position, end, last = 0, None, None
    else:
        stream, position, end, last = raw, span.start, span.end, file.bytes
        if position:
            # a line belongs to the span that its first byte is in
            stream.seek(position - 1)
            position += len(stream.readline(last - position + 1)) - 1
    first = position == 0
    while end is None or position < end:
        block = stream.read(batch_bytes if end is None else min(batch_bytes, end - position))
        if not block:
            return
        if not block.endswith(b"\n"):
            block += stream.readline(-1 if last is None else last - position - len(block))
        position += len(block)
        yield without_mark(block, file.name) if first else block
        first = False


def _parquet(
    raw: BinaryIO,
    file: SourceFile,
    rules: ReadingRules,
    groups: Sequence[int] | None,
    batch_bytes: int,
    fields: Sequence[str],
) -> Iterator[Batch]:
    batch, index, size = Batch(), 0, 0
    for texts, *others in parquet_columns(raw, file.name, [rules.text_field, *fields], groups):
        for row, value in enumerate(texts):
            if value.__class__ is str and value:
                batch.texts.append(value)
                if fields:
                    batch.fields.append([column[row] for column in others])
                size += len(value)
            else:
                found = parquet_document(value, rules.text_field, file.name, index + row)
                if isinstance(found, Dropped):
                    batch.dropped.append(found)
                else:
                    batch.texts.append(found.text)
                    if fields:
                        batch.fields.append([column[row] for column in others])
        index += len(texts)
        if size >= batch_bytes:
            yield batch
            batch, size = Batch(), 0
    yield batch


def _lines_before(file: SourceFile, position: int) -> int:
    count, block_end = 0, b""
    with open_source(file.url) as stream:
        stream = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, Head(stream, position))))
        while block := stream.read(1 << 20):
            count += block.count(b"\n")
            block_end = block[-1:]
    # a line that reaches into the span began before it
    return count if block_end.endswith(b"\n") else count + 1
