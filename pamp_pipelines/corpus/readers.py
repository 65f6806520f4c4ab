"""Reading documents out of source files. Every row is either a document or dropped for a named reason."""

import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import orjson
from pydantic import BaseModel, ConfigDict

from pamp_pipelines.corpus.compression import compression_of, damage_errors, decompress
from pamp_pipelines.corpus.sources import SourceFile, open_source
from pamp_pipelines.declarations.corpus import CorpusFormat
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
            pinned = raw if rules.format == "parquet" else cast(BinaryIO, _Head(raw, file.bytes))
            for row in read(pinned, file.name, rules.text_field):
                if isinstance(row, Dropped) and row.reason != "empty" and rules.on_error == "stop":
                    raise InputError(
                        f"{file.name}: row {row.index + 1}: {row.detail} ({row.reason}). "
                        "Correct the file, or declare `on_error: drop` to count such rows and leave them out."
                    )
                yield row
    except damage_errors() as error:
        raise InputError(
            f"{file.name}: cannot be read to its end ({type(error).__name__}: {error}). "
            "The file is damaged, cut off or not what its suffix says; fetch it again."
        ) from error


class _Head(io.RawIOBase):
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


def _read_jsonl(raw: BinaryIO, name: str, field: str) -> Iterator[Document | Dropped]:
    path = field.split(".")
    for index, line in enumerate(decompress(raw, name)):
        if index == 0:
            line = _without_mark(line, name)
        if line.isspace() or not line:
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            # NaN, Infinity and lone surrogates pass Python's parser, which writes them into many data sets
            try:
                value = json.loads(line.decode())  # decoded here: given bytes, json guesses UTF-16 from NULs
            except UnicodeDecodeError as inner:
                yield Dropped("not_utf8", name, index, f"byte {inner.start + 1} of the line is not UTF-8")
                continue
            except (ValueError, RecursionError):
                yield Dropped("malformed", name, index, f"not JSON: {error}")
                continue
        yield _row(_follow(value, path), field, name, index)


class _Absent(NamedTuple):
    reason: Reason
    detail: str


def _follow(value: Any, path: list[str]) -> Any:
    for depth, key in enumerate(path):
        if not isinstance(value, dict):
            where = ".".join(path[:depth])
            if depth == 0:
                return _Absent("malformed", f"not a JSON object but {_type_name(value)}")
            return _Absent("wrong_type", f"field {where!r} is not an object but {_type_name(value)}")
        if value.get(key) is None:
            return _Absent("missing_field", f"no field {'.'.join(path[: depth + 1])!r}; there are {_keys(value)}")
        value = value[key]
    return value


def _row(value: Any, field: str, name: str, index: int) -> Document | Dropped:
    if isinstance(value, _Absent):
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


def _read_text(raw: BinaryIO, name: str, _: str) -> Iterator[Document | Dropped]:
    data = _without_mark(decompress(raw, name).read(), name)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        yield Dropped("not_utf8", name, 0, f"byte {error.start + 1} is not UTF-8")
        return
    yield _row(text, "text", name, 0)


def _without_mark(head: bytes, name: str) -> bytes:
    for mark, encoding in _FOREIGN_MARKS.items():
        if head.startswith(mark):
            raise InputError(
                f"{name}: the text is {encoding}; convert it to UTF-8 first (iconv -f {encoding} -t UTF-8)."
            )
    return head.removeprefix(_UTF8_MARK)


def _read_parquet(raw: BinaryIO, name: str, field: str) -> Iterator[Document | Dropped]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as spool:
        if compression_of(name):
            # a Parquet file is read from its end, so an outer compression has to be undone first
            stream = decompress(raw, name)
            while block := stream.read(1 << 20):
                spool.write(block)
            spool.seek(0)
            raw = spool
        table = pq.ParquetFile(raw)
        kind = _column_type(table.schema_arrow, field, name)
        index = 0
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[field]):
            column = batch.column(0)
            for part in field.split(".")[1:]:
                # unlike .field(), flatten() keeps the nulls of the parent
                column = column.flatten()[column.type.get_field_index(part)]
            if pa.types.is_dictionary(kind):
                column = column.dictionary_decode()
            # as bytes, since Parquet writers do not check their text
            for value in column.cast(pa.large_binary()).to_pylist():
                yield _parquet_row(value, field, name, index)
                index += 1


def _column_type(schema: Any, field: str, name: str) -> Any:
    import pyarrow as pa

    kind: Any = pa.struct(schema)
    for part in field.split("."):
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            raise InputError(f"{name}: no column {field!r}; there are {', '.join(schema.names)}. Correct `text_field`.")
        kind = kind.field(part).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_binary(value)):
        raise InputError(f"{name}: column {field!r} holds {kind}, not text. Correct `text_field`.")
    return kind


def _parquet_row(value: bytes | None, field: str, name: str, index: int) -> Document | Dropped:
    if value is None:
        return Dropped("missing_field", name, index, f"column {field!r} is null")
    try:
        return _row(value.decode(), field, name, index)
    except UnicodeDecodeError as error:
        return Dropped("not_utf8", name, index, f"byte {error.start + 1} of the text is not UTF-8")
