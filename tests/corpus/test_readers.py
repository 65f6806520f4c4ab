import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamp_pipelines.corpus.fingerprints import fingerprint, unchanged
from pamp_pipelines.corpus.readers import Document, Dropped, ReadingRules, format_of, read_documents
from pamp_pipelines.corpus.sources import Location, SourceFile
from pamp_pipelines.errors import InputError

Put = Callable[..., SourceFile]


def rules(format: str = "jsonl", **more: Any) -> ReadingRules:
    return ReadingRules.model_validate({"format": format, "on_error": "drop", **more})


def rows(file: SourceFile, rules: ReadingRules) -> list[str]:
    """Texts, and reasons in angle brackets."""
    return [r.text if isinstance(r, Document) else f"<{r.reason}>" for r in read_documents(file, rules)]


def lines(*values: Any) -> bytes:
    return b"".join((v if isinstance(v, bytes) else json.dumps(v).encode()) + b"\n" for v in values)


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


TEXTS = ["one", "zwei\r\nzeilen", "三 个", "  ", "nul\0inside", "x" * 100_000]


def test_jsonl_in_every_compression(put: Put, suffix: str) -> None:
    file = put(f"a.jsonl{suffix}", lines(*({"text": t} for t in TEXTS)))
    assert rows(file, rules()) == TEXTS


def test_text_in_every_compression(put: Put, suffix: str) -> None:
    file = put(f"a.txt{suffix}", b"line 1\r\nline 2\n\n")
    assert rows(file, rules("text")) == ["line 1\r\nline 2\n\n"]


def test_parquet_in_every_compression(put: Put, suffix: str) -> None:
    file = put(f"a.parquet{suffix}", parquet(pa.table({"other": [1] * 6, "text": TEXTS}), row_group_size=2))
    assert rows(file, rules("parquet")) == TEXTS


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_column_types(put: Put, kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(["b", None, "", "a", "b"], pa.string()).cast(kind)})
    assert rows(put("a.parquet", parquet(table)), rules("parquet")) == ["b", "<missing_field>", "<empty>", "a", "b"]


def test_parquet_fields_of_structs(put: Put) -> None:
    values = [{"text": "a", "n": 1}, None, {"text": None, "n": 2}, {"text": "b", "n": 3}]
    table = pa.table({"id": range(4), "meta": values})
    file = put("a.parquet", parquet(table))
    assert rows(file, rules("parquet", text_field="meta.text")) == ["a", "<missing_field>", "<missing_field>", "b"]


def test_parquet_text_is_checked(put: Put) -> None:
    table = pa.table({"text": pa.array([b"good", b"\xff\xfe bad"], pa.binary()).view(pa.string())})
    assert rows(put("a.parquet", parquet(table)), rules("parquet")) == ["good", "<not_utf8>"]


@pytest.mark.parametrize("field", ["body", "n", "meta.body", "text.deeper"])
def test_an_unusable_parquet_column_always_stops(put: Put, field: str) -> None:
    file = put("a.parquet", parquet(pa.table({"text": ["a"], "n": [1], "meta": [{"x": "y"}]})))
    with pytest.raises(InputError, match=f"a.parquet: .*{field}.*text_field"):
        rows(file, rules("parquet", text_field=field))


def test_field_paths_go_into_objects(put: Put) -> None:
    file = put(
        "a.jsonl", lines({"meta": {"text": "a"}}, {"meta": {}}, {"meta": "a"}, {"text": "a"}, {"meta": {"text": 1}})
    )
    assert rows(file, rules(text_field="meta.text")) == [
        "a",
        "<missing_field>",
        "<wrong_type>",
        "<missing_field>",
        "<wrong_type>",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": "cut', "<malformed>"),
        (b"[1, 2]", "<malformed>"),
        (b"42", "<malformed>"),
        (b'{"text": "a"} {"text": "b"}', "<malformed>"),
        (b"[" * 100_000, "<malformed>"),
        (b'{"body": "a"}', "<missing_field>"),
        (b'{"text": null}', "<missing_field>"),
        (b'{"text": 1}', "<wrong_type>"),
        (b'{"text": ["a"]}', "<wrong_type>"),
        (b'{"text": ""}', "<empty>"),
        (b'{"text": " \\n"}', " \n"),
        (b'{"text": "\xff"}', "<not_utf8>"),
        (b'{"text": "\\ud800"}', "<not_utf8>"),
        (b'{"text": "\\ud83d\\ude00"}', "\N{GRINNING FACE}"),
        (b'{"text": "a", "score": NaN}', "a"),
        (b'{"text": "a", "big": 123456789012345678901234567890}', "a"),
        (b'{"text": "\x00"}', "<malformed>"),
        (b'{"text": "\\u0000"}', "\0"),
    ],
)
def test_every_bad_row_has_a_reason(put: Put, line: bytes, expected: str) -> None:
    file = put("a.jsonl", lines({"text": "before"}, line, {"text": "after"}))
    assert rows(file, rules()) == ["before", expected, "after"]


@pytest.mark.parametrize("line", [b'{"text": "cut', b'{"body": "a"}', b'{"text": 1}', b'{"text": "\xff"}'])
def test_on_error_stop_names_file_and_row(put: Put, line: bytes) -> None:
    file = put("a.jsonl", lines({"text": "before"}, line))
    with pytest.raises(InputError, match=r"a\.jsonl: row 2: .*on_error: drop"):
        rows(file, rules(on_error="stop"))


def test_empty_text_never_stops(put: Put) -> None:
    file = put("a.jsonl", lines({"text": ""}, {"text": "a"}))
    assert rows(file, rules(on_error="stop")) == ["<empty>", "a"]


def test_blank_lines_are_no_rows_but_count_as_lines(put: Put) -> None:
    file = put("a.jsonl", b'\n{"text": "a"}\r\n   \n{"text": "b"}')
    assert [(r.index, r.text) for r in read_documents(file, rules()) if isinstance(r, Document)] == [(1, "a"), (3, "b")]


def test_a_byte_order_mark_is_no_text(put: Put) -> None:
    assert rows(put("a.jsonl", b"\xef\xbb\xbf" + lines({"text": "a"})), rules()) == ["a"]
    assert rows(put("a.txt", b"\xef\xbb\xbfa"), rules("text")) == ["a"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("format", ["jsonl", "text"])
def test_utf16_is_refused_by_name(put: Put, encoding: str, format: str) -> None:
    with pytest.raises(InputError, match="UTF-16"):
        rows(put("a.x", '\ufeff{"text": "a"}\n'.encode(encoding)), rules(format))


def test_text_that_is_not_utf8(put: Put) -> None:
    file = put("a.txt", "für".encode("latin-1"))
    assert rows(file, rules("text")) == ["<not_utf8>"]
    with pytest.raises(InputError, match="byte 2 is not UTF-8"):
        rows(file, rules("text", on_error="stop"))


def test_an_empty_file_has_one_empty_text_or_no_rows(put: Put) -> None:
    assert rows(put("a.txt", b""), rules("text")) == ["<empty>"]
    assert rows(put("a.jsonl", b""), rules()) == []
    assert rows(put("a.jsonl.gz", b""), rules()) == []


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.jsonl.xz", "a.parquet"])
def test_a_file_that_is_cut_off_always_stops(put: Put, name: str, keep: float) -> None:
    content = [f"{i} {i * 2654435761 % 2**32}" for i in range(3000)]
    data = parquet(pa.table({"text": content})) if "parquet" in name else lines(*({"text": t} for t in content))
    file = put(name, data, keep=keep)
    with pytest.raises(InputError, match=f"{name}: cannot be read to its end"):
        rows(file, rules(format_of(name)))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.jsonl.xz", "a.parquet"])
def test_a_wrong_suffix_stops(put_raw: Put, name: str) -> None:
    with pytest.raises(InputError, match=name):
        rows(put_raw(name, lines({"text": "a"})), rules(format_of(name)))


@pytest.mark.parametrize("compression", [".gz", ".zst", ".bz2", ".xz"])
def test_several_frames_one_after_another(put: Put, put_raw: Put, compression: str) -> None:
    name = f"a.jsonl{compression}"
    frames = [Path(put(name, data).url).read_bytes() for data in (lines({"text": "a"}), b"", lines({"text": "b"}))]
    assert rows(put_raw(name, b"".join(frames) + bytes(8)), rules()) == ["a", "b"]
    for tail in (b"garbage", frames[2][:-1]):
        with pytest.raises(InputError, match="cannot be read to its end"):
            rows(put_raw(name, frames[0] + tail), rules())


@pytest.mark.parametrize("compression", [".gz", ".zst", ".bz2", ".xz"])
def test_a_flipped_bit_stops(put: Put, put_raw: Put, compression: str) -> None:
    file = put(f"a.jsonl{compression}", lines(*({"text": f"{i} {i * 2654435761 % 2**32}"} for i in range(500))))
    data = bytearray(Path(file.url).read_bytes())
    data[len(data) // 2] ^= 0x10
    with pytest.raises(InputError, match="cannot be read to its end"):
        rows(put_raw(file.name, data), rules())


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_files_behind_a_url(put: Put, name: str) -> None:
    data = parquet(pa.table({"text": TEXTS})) if name == "a.parquet" else lines(*({"text": t} for t in TEXTS))
    url = f"memory:///readers/{name}"
    fsspec.filesystem("memory").pipe(f"/readers/{name}", Path(put(name, data).url).read_bytes())
    (file,) = fingerprint([Location(url, url)])
    with unchanged(file):
        assert rows(file, rules(format_of(url))) == TEXTS


def test_a_file_is_read_as_far_as_it_was_pinned(put: Put, suffix: str) -> None:
    file = put(f"a.jsonl{suffix}", lines({"text": "a"}))
    with Path(file.url).open("ab") as stream:
        stream.write(Path(file.url).read_bytes())
    assert rows(file, rules()) == ["a"]


def test_formats_by_suffix() -> None:
    assert format_of("x/a.jsonl") == "jsonl"
    assert format_of("x/a.ndjson.ZST") == "jsonl"
    assert format_of("a.parquet") == "parquet"
    assert format_of("a.b.txt.gz") == "text"
    for name in ("a", "a.csv", "a.gz"):
        with pytest.raises(InputError, match="unknown format"):
            format_of(name)


BAD_LINES = {"malformed": b"{", "missing_field": b"{}", "wrong_type": b'{"text": 0}', "empty": b'{"text": ""}'}
ROW = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1).map(lambda t: (t, None)),
    st.sampled_from([(None, reason) for reason in BAD_LINES]),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(ROW), compression=st.sampled_from(["", ".gz", ".zst", ".bz2", ".xz"]))
def test_every_row_is_a_document_or_dropped(
    put: Put, content: list[tuple[str | None, str | None]], compression: str
) -> None:
    data = lines(*(BAD_LINES[reason] if reason else {"text": text} for text, reason in content))
    got = list(read_documents(put(f"a.jsonl{compression}", data), rules()))
    assert [r.index for r in got] == list(range(len(content)))
    assert [r.text for r in got if isinstance(r, Document)] == [t for t, _ in content if t is not None]
    assert Counter(r.reason for r in got if isinstance(r, Dropped)) == Counter(r for _, r in content if r)
