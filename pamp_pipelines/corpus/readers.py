"""Reading documents out of source files. Every row is either a document or dropped for a named reason."""

import codecs
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import orjson
from pydantic import BaseModel, ConfigDict

from pamp_pipelines.corpus.compression import compression_of, damage_errors, decompress
from pamp_pipelines.corpus.recoding import decompressed
from pamp_pipelines.corpus.sources import SourceFile, open_source
from pamp_pipelines.declarations.corpus import CorpusFormat, Encoding
from pamp_pipelines.errors import InputError

Reason = Literal["malformed", "missing_field", "wrong_type", "empty", "not_utf8"]

_SUFFIXES: dict[str, CorpusFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
_UTF8_MARK = b"\xef\xbb\xbf"
_FOREIGN_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_RECODE = "declare `encoding: {}`, or convert it first (iconv -f {} -t UTF-8)"
_PARQUET_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Document:
    """One text. ``index`` counts the lines or rows of its file from 0."""

    text: str
    file: str
    index: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is no document, and why; ``detail`` is for people."""

    reason: Reason
    file: str
    index: int
    detail: str


class ReadingRules(BaseModel):
    """How the files of a corpus are read; part of its identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: CorpusFormat
    text_field: str = "text"
    encoding: Encoding = "utf-8"
    on_error: Literal["stop", "drop"] = "stop"


def format_of(name: str) -> CorpusFormat:
    """Format by suffix, below a suffix of compression.

    Raises:
        InputError: an unknown suffix; lists the known ones.
    """
    path = PurePath(name)
    suffix = (PurePath(path.stem) if compression_of(name) else path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"{name}: unknown format; the suffix must be one of {', '.join(_SUFFIXES)} (then .gz .zst …)")
    return _SUFFIXES[suffix]


def read_documents(file: SourceFile, rules: ReadingRules) -> Iterator[Document | Dropped]:
    """The rows of one file in order; at most one batch of rows is in memory.

    Empty text is dropped under either ``on_error``; text of white space only is a document. A null counts as a missing
    field. Blank lines of a JSONL file are no rows.

    Raises:
        InputError: the file is damaged or cut off, whatever ``on_error`` says: how many documents are lost is unknown
            then; or ``on_error`` is ``stop`` and a row is bad.
    """
    read = {"jsonl": _read_jsonl, "parquet": _read_parquet, "text": _read_text}[rules.format]
    try:
        with open_source(file.url) as raw:
            # only as far as the file was pinned: one that grows faster than it is read would never end
            pinned = raw if rules.format == "parquet" else cast(BinaryIO, Head(raw, file.bytes))
            for row in read(pinned, file.name, rules):
                if isinstance(row, Dropped):
                    stop_at(row, rules)
                yield row
    except damage_errors() as error:
        raise damaged(file, error) from error


def stop_at(row: Dropped, rules: ReadingRules, rows_before: int = 0) -> None:
    """Raises InputError for a bad row under ``on_error: stop``; ``rows_before`` come before the row's ``index`` 0."""
    if row.reason != "empty" and rules.on_error == "stop":
        raise InputError(
            f"{row.file}: row {rows_before + row.index + 1}: {row.detail} ({row.reason}). "
            "Correct the file, or declare `on_error: drop` to count such rows and leave them out."
        )


def damaged(file: SourceFile, error: Exception) -> InputError:
    """The message for one of ``damage_errors()``."""
    return InputError(
        f"{file.name}: cannot be read to its end ({type(error).__name__}: {error}). "
        "The file is damaged, cut off or not what its suffix says; fetch it again."
    )


class Head(io.RawIOBase):
    """The first ``size`` bytes of a stream."""

    def __init__(self, raw: BinaryIO, size: int) -> None:
        self._raw = raw
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]
        data = self._raw.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _read_jsonl(raw: BinaryIO, name: str, rules: ReadingRules) -> Iterator[Document | Dropped]:
    path = rules.text_field.split(".")
    for index, line in enumerate(decompressed(raw, name, rules.encoding)):
        record = parse_line(without_mark(line, name) if index == 0 else line, name, index)
        if isinstance(record, Dropped):
            yield record
        elif record is not BLANK:
            yield as_document(follow(record, path), rules.text_field, name, index)


BLANK = object()
"""What ``parse_line`` gives for a line that is no row."""


def parse_line(line: bytes, name: str, index: int) -> Any:
    """The JSON value of a line, ``BLANK``, or the ``Dropped`` that says what is wrong with it."""
    if line.isspace() or not line:
        return BLANK
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        # NaN, Infinity and lone surrogates pass Python's parser, which writes them into many data sets
        try:
            return json.loads(line.decode())  # decoded here: given bytes, json guesses UTF-16 from NULs
        except UnicodeDecodeError as inner:
            return Dropped("not_utf8", name, index, not_utf8(line, inner))
        except (ValueError, RecursionError):
            return Dropped("malformed", name, index, f"not JSON: {error}")


class Absent(NamedTuple):
    """A field that is not there."""

    reason: Reason
    detail: str


def follow(value: Any, path: Sequence[str]) -> Any:
    """The value at a field path, or an ``Absent`` that says where it ends."""
    for depth, key in enumerate(path):
        if not isinstance(value, dict):
            where = ".".join(path[:depth])
            if depth == 0:
                return Absent("malformed", f"not a JSON object but {_type_name(value)}")
            return Absent("wrong_type", f"field {where!r} is not an object but {_type_name(value)}")
        if value.get(key) is None:
            return Absent("missing_field", f"no field {'.'.join(path[: depth + 1])!r}; there are {_keys(value)}")
        value = value[key]
    return value


def as_document(value: Any, field: str, name: str, index: int) -> Document | Dropped:
    """The verdict on the value of the text field."""
    if isinstance(value, Absent):
        return Dropped(value.reason, name, index, value.detail)
    if not isinstance(value, str):
        return Dropped("wrong_type", name, index, f"field {field!r} is not text but {_type_name(value)}")
    if not value:
        return Dropped("empty", name, index, "empty text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return Dropped("not_utf8", name, index, f"lone surrogate at character {error.start + 1}")
    return Document(value, name, index)


def _keys(value: dict[str, Any]) -> str:
    return ", ".join(repr(k) for k in sorted(value)[:10]) or "no fields"


def _type_name(value: Any) -> str:
    return {dict: "an object", list: "a list", bool: "a boolean", type(None): "null", str: "text"}.get(
        type(value), "a number"
    )


def _read_text(raw: BinaryIO, name: str, rules: ReadingRules) -> Iterator[Document | Dropped]:
    data = without_mark(decompressed(raw, name, rules.encoding).read(), name)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield Dropped("not_utf8", name, 0, not_utf8(data, error))
        return
    yield as_document(text, "text", name, 0)


def without_mark(head: bytes, name: str) -> bytes:
    """The first bytes of a file without UTF-8's byte order mark.

    Raises:
        InputError: the mark of UTF-16.
    """
    for mark, encoding in _FOREIGN_MARKS.items():
        if head.startswith(mark):
            raise InputError(f"{name}: the text is {encoding}; {_RECODE.format(encoding.lower(), encoding)}.")
    return head.removeprefix(_UTF8_MARK)


def not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    """What is wrong with bytes that are not UTF-8, with the name of the encoding that they look like."""
    detail = f"byte {error.start + 1} is not UTF-8"
    near = data[max(0, error.start - 200) : error.start + 200]
    if near.count(0) > len(near) // 20:
        return f"{detail} but looks like UTF-16; {_RECODE.format('utf-16-le', 'UTF-16LE')}"
    try:
        text = codecs.getincrementaldecoder("gb18030")().decode(data[error.start : error.start + 4000])
    except UnicodeDecodeError:
        return detail
    han = sum("\u4e00" <= c <= "\u9fff" or "\u3000" <= c <= "\u303f" or "\uff00" <= c <= "\uffef" for c in text)
    if han < 2 or 2 * han < sum(not c.isascii() for c in text):
        return detail
    return f"{detail} but looks like GB18030; {_RECODE.format('gb18030', 'GB18030')}"


def _read_parquet(raw: BinaryIO, name: str, rules: ReadingRules) -> Iterator[Document | Dropped]:
    with tempfile.TemporaryFile() as spool:
        if compression_of(name):
            # a Parquet file is read from its end, so an outer compression has to be undone first
            stream = decompress(raw, name)
            while block := stream.read(1 << 20):
                spool.write(block)
            spool.seek(0)
            raw = spool
        index = 0
        for (column,) in parquet_columns(raw, name, [rules.text_field]):
            for value in column:
                yield parquet_document(value, rules.text_field, name, index)
                index += 1


def parquet_columns(
    raw: BinaryIO, name: str, fields: Sequence[str], row_groups: Sequence[int] | None = None
) -> Iterator[list[list[Any]]]:
    """Columns of a Parquet file, batch by batch.

    Args:
        fields: the first is the text, which comes as ``str`` where the whole batch is valid UTF-8 and else as bytes,
            since Parquet writers do not check it; others come as Python values.
        row_groups: default: all.

    Raises:
        InputError: there is no such column, or the first holds no text.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.ParquetFile(raw)
    kinds = [_column_type(table.schema_arrow, field, name) for field in fields]
    _require_text(kinds[0], fields[0], name)
    groups = None if row_groups is None else list(row_groups)
    for batch in table.iter_batches(batch_size=_PARQUET_ROWS, row_groups=groups, columns=list(dict.fromkeys(fields))):
        columns = []
        for field, kind in zip(fields, kinds, strict=True):
            first, *path = field.split(".")
            column = batch.column(first)
            for part in path:
                # unlike .field(), flatten() keeps the nulls of the parent
                column = column.flatten()[column.type.get_field_index(part)]
            columns.append(column.dictionary_decode() if pa.types.is_dictionary(kind) else column)
        text, *others = columns
        try:
            values = text.cast(pa.large_string()).to_pylist()
        except (pa.ArrowInvalid, UnicodeDecodeError):
            values = text.cast(pa.large_binary()).to_pylist()
        yield [values, *(column.to_pylist() for column in others)]


def _column_type(schema: Any, field: str, name: str) -> Any:
    import pyarrow as pa

    kind: Any = pa.struct(schema)
    for part in field.split("."):
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            raise InputError(f"{name}: no column {field!r}; there are {', '.join(schema.names)}. Correct `text_field`.")
        kind = kind.field(part).type
    return kind


def _require_text(kind: Any, field: str, name: str) -> None:
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_binary(value)):
        raise InputError(f"{name}: column {field!r} holds {kind}, not text. Correct `text_field`.")


def parquet_document(value: "str | bytes | None", field: str, name: str, index: int) -> Document | Dropped:
    """The verdict on a value of the text column."""
    if value is None:
        return Dropped("missing_field", name, index, f"column {field!r} is null")
    if isinstance(value, bytes):
        data = value
        try:
            value = data.decode()
        except UnicodeDecodeError as error:
            return Dropped("not_utf8", name, index, not_utf8(data, error))
    return as_document(value, field, name, index)
