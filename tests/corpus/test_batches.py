"""Reading by spans gives what reading by rows gives, whatever the cuts."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamp_pipelines.corpus.batches import read_batches
from pamp_pipelines.corpus.fingerprints import fingerprint
from pamp_pipelines.corpus.readers import Document, Dropped, ReadingRules, read_documents
from pamp_pipelines.corpus.sources import Location, SourceFile
from pamp_pipelines.corpus.spans import plan_tasks
from pamp_pipelines.errors import InputError

PROPERTY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30).map(lambda text: json.dumps({"text": text}).encode()),
    st.text(st.characters(codec="utf-8"), max_size=30).map(
        lambda text: json.dumps({"text": text}, ensure_ascii=False).encode()
    ),
    st.sampled_from(
        [
            b"",
            b"  ",
            b"{",
            b"{}",
            b'{"text": 3}',
            b"[1]",
            b'{"text": null}',
            b'{"text": "\\ud800"}',
            b'{"text": "\xff"}',
        ]
    ),
)


def pinned(path: Path) -> SourceFile:
    return fingerprint([Location(str(path), path.name)])[0]


def by_spans(file: SourceFile, rules: ReadingRules, task_bytes: int, batch_bytes: int) -> tuple[list[str], list[str]]:
    texts: list[str] = []
    dropped: list[str] = []
    for task in plan_tasks([file], rules, task_bytes):
        for span in task:
            for batch in read_batches(file, rules, span, batch_bytes):
                texts += batch.texts
                dropped += [row.reason for row in batch.dropped]
    return texts, dropped


def by_rows(file: SourceFile, rules: ReadingRules) -> tuple[list[str], list[str]]:
    rows: list[Any] = list(read_documents(file, rules))
    return [r.text for r in rows if isinstance(r, Document)], [r.reason for r in rows if isinstance(r, Dropped)]


@PROPERTY
@given(
    lines=st.lists(LINES, max_size=30),
    end=st.sampled_from([b"", b"\n", b"\r\n"]),
    task_bytes=st.integers(1, 200),
    batch_bytes=st.integers(1, 100),
    mark=st.booleans(),
)
def test_jsonl(tmp_path: Path, lines: list[bytes], end: bytes, task_bytes: int, batch_bytes: int, mark: bool) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + (end or b"\n").join(lines) + end)
    rules = ReadingRules(format="jsonl", on_error="drop")
    assert by_spans(pinned(path), rules, task_bytes, batch_bytes) == by_rows(pinned(path), rules)


@pytest.mark.parametrize("kind", ["plain", "gz"])
@pytest.mark.parametrize("field", ["text", "meta.text"])
def test_nested_and_compressed(tmp_path: Path, kind: str, field: str) -> None:
    rows: list[Any] = [{"text": f"t{i}", "meta": {"text": f"m{i}"}} for i in range(50)]
    rows[7] = {"meta": 3}
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = tmp_path / ("a.jsonl" if kind == "plain" else "a.jsonl.gz")
    path.write_bytes(data if kind == "plain" else gzip.compress(data))
    rules = ReadingRules(format="jsonl", text_field=field, on_error="drop")
    found = by_spans(pinned(path), rules, 100, 64)
    assert found == by_rows(pinned(path), rules)
    assert len(found[0]) == 49


def test_parquet_by_row_groups(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = [*(f"text {i}" for i in range(100)), None, ""]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(values)}), path, row_group_size=10)
    rules = ReadingRules(format="parquet", on_error="drop")
    file = pinned(path)
    assert len(plan_tasks([file], rules, 1)) == 11
    assert by_spans(file, rules, 1, 50) == by_rows(file, rules) == (values[:100], ["missing_field", "empty"])


def test_small_files_share_a_task(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name * 40)
    files = [pinned(tmp_path / f"{name}.txt") for name in "abcd"]
    tasks = plan_tasks(files, ReadingRules(format="text"), 100)
    assert [[span.file for span in task] for task in tasks] == [[0, 1], [2, 3]]


CHINESE = "中文维基百科，自由的百科全书。"


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("format", ["jsonl", "text"])
def test_declared_encodings(tmp_path: Path, encoding: str, format: str) -> None:
    path = tmp_path / ("a.jsonl" if format == "jsonl" else "a.txt")
    lines = [json.dumps({"text": f"{CHINESE}{i}"}, ensure_ascii=False) for i in range(9)]
    path.write_bytes(("\n".join(lines) if format == "jsonl" else CHINESE).encode(encoding))
    rules = ReadingRules.model_validate({"format": format, "encoding": encoding})
    found = by_spans(pinned(path), rules, 50, 40)
    assert found == by_rows(pinned(path), rules)
    assert found[0] == ([f"{CHINESE}{i}" for i in range(9)] if format == "jsonl" else [CHINESE])


@pytest.mark.parametrize(
    ("encoding", "named"), [("gb18030", "GB18030"), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("big5", None)]
)
@pytest.mark.parametrize("format", ["jsonl", "text"])
def test_other_encodings_are_refused_by_name(tmp_path: Path, encoding: str, named: str | None, format: str) -> None:
    path = tmp_path / ("a.jsonl" if format == "jsonl" else "a.txt")
    text = json.dumps({"text": CHINESE}, ensure_ascii=False) + "\n" if format == "jsonl" else CHINESE + "\n1 a\n"
    path.write_bytes(text.replace("，", "").encode(encoding, errors="replace"))
    rules = ReadingRules.model_validate({"format": format})
    with pytest.raises(InputError, match=named or r"not_utf8|malformed"):
        by_spans(pinned(path), rules, 1 << 20, 1 << 20)


def test_a_text_that_is_not_of_its_declared_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc\xff\xff")
    with pytest.raises(InputError, match="gb18030"):
        by_spans(pinned(path), ReadingRules(format="text", encoding="gb18030"), 100, 100)


def test_a_line_longer_than_any_batch(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    texts = ["x" * 5000, "y", "z" * 3000]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert by_spans(pinned(path), ReadingRules(format="jsonl"), 1000, 100) == (texts, [])
