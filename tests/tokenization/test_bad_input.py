"""What a whole build makes of bad input: it stops before anything is published, or publishes with exact counts."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pamp_pipelines.corpus import progress
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.events import Event
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job

GOOD = b'{"text": "good"}\n'


def build(folder: Path, tokenizer: Path, **more: Any) -> Artifact:
    return tokenize(plain_tokenize_job([str(folder / "in")], tokenizer, folder / "out", workers=1, **more))


def put(folder: Path, content: bytes, name: str = "a.jsonl") -> Path:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_bytes(content)
    return folder / "in" / name


def texts(artifact: Artifact) -> list[str]:
    engine, reader = open_tokenizer(artifact.path), IndexedReader(artifact.path / "train")
    return [engine.decode(reader[i][:-1].tolist()) for i in range(len(reader))]


def nothing_left(folder: Path) -> bool:
    return {path.name for path in folder.iterdir()} <= {"in", "out.lock", ".out.lock"}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"text": "cut off\n', "malformed"),
        (b"nonsense\n", "malformed"),
        (b'["text"]\n', "malformed"),
        (b'{"text": 3}\n', "wrong_type"),
        (b'{"text": ["a"]}\n', "wrong_type"),
        (b'{"body": "a"}\n', "missing_field"),
        (b'{"text": null}\n', "missing_field"),
        (b'{"text": "\\ud800"}\n', "not_utf8"),
        (b'{"text": "a\\udfffb"}\n', "not_utf8"),
        (b'{"text": "\xff\xfe"}\n', "not_utf8"),
    ],
)
def test_bad_rows(tmp_path: Path, tokenizer: Path, row: bytes, reason: str, place: str) -> None:
    number = {"first": 0, "middle": 2, "last": 4}[place]
    lines = [GOOD] * 4
    lines.insert(number, row)
    put(tmp_path, b"".join(lines))
    with pytest.raises(InputError, match=rf"a\.jsonl: row {number + 1}: .*\({reason}\).*on_error: drop"):
        build(tmp_path, tokenizer)
    assert nothing_left(tmp_path)
    artifact = build(tmp_path, tokenizer, on_error="drop")
    assert artifact.manifest.stats["dropped"] == {reason: 1}
    assert artifact.manifest.stats["documents_read"] == 5
    assert texts(artifact) == ["good"] * 4
    assert not artifact.manifest.failed_checks


@pytest.mark.parametrize("place", ["first", "last", "only"])
@pytest.mark.parametrize("text", ["", " ", " \n\t\u3000"])
def test_empty_and_blank_documents(tmp_path: Path, tokenizer: Path, text: str, place: str) -> None:
    row = json.dumps({"text": text}).encode() + b"\n"
    put(tmp_path, {"first": row + GOOD, "last": GOOD + row, "only": row}[place])
    if place == "only" and not text:
        with pytest.raises(InputError, match=r"no document is left \(dropped: \{'empty': 1\}\)"):
            build(tmp_path, tokenizer)
        assert nothing_left(tmp_path)
        return
    artifact = build(tmp_path, tokenizer)
    kept = [text] if text else []
    good = [] if place == "only" else ["good"]
    assert texts(artifact) == (kept + good if place == "first" else good + kept)
    assert artifact.manifest.stats["dropped"] == ({} if text else {"empty": 1})
    assert not artifact.manifest.failed_checks


def test_nul_characters_are_text(tmp_path: Path, tokenizer: Path) -> None:
    put(tmp_path, b'{"text": "a\\u0000b"}\n{"text": "\\u0000"}\n')
    assert texts(build(tmp_path, tokenizer)) == ["a\0b", "\0"]


def cut_off(name: str) -> bytes:
    rows = b"".join(b'{"text": "%d %d"}\n' % (i, i * 2654435761 % 2**32) for i in range(3000))
    table = io.BytesIO()
    pq.write_table(pa.table({"text": [f"{i} {i * 2654435761 % 2**32}" for i in range(3000)]}), table)
    packed = {
        "a.jsonl.gz": gzip.compress(rows),
        "a.jsonl.zst": zstandard.compress(rows),
        "a.jsonl.bz2": bz2.compress(rows),
        "a.jsonl.xz": lzma.compress(rows),
        "a.parquet": table.getvalue(),
    }[name]
    return packed[: int(len(packed) * 0.9)]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.jsonl.xz", "a.parquet"])
def test_a_file_that_is_cut_off_stops_whatever_is_declared(tmp_path: Path, tokenizer: Path, name: str) -> None:
    put(tmp_path, cut_off(name), name)
    for on_error in ("stop", "drop"):
        with pytest.raises(InputError, match=f"{name}: cannot be read to its end"):
            build(tmp_path, tokenizer, on_error=on_error)
        assert nothing_left(tmp_path)


@pytest.mark.parametrize("how", ["grows", "disappears", "is replaced"])
def test_a_file_that_changes_meanwhile(
    tmp_path: Path, tokenizer: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    file = put(tmp_path, GOOD * 200)
    job = plain_tokenize_job([str(file)], tokenizer, tmp_path / "out", workers=1)

    def change(event: Event) -> None:
        if event.kind == "progress":
            match how:
                case "grows":
                    file.write_bytes(file.read_bytes() + GOOD)
                case "disappears":
                    file.unlink(missing_ok=True)
                case _:
                    other = file.with_name("other")
                    other.write_bytes(GOOD * 200)
                    other.replace(file)

    with pytest.raises(InputError, match=r"a\.jsonl: (was written while it was read|the file has disappeared)"):
        tokenize(job.model_copy(update={"batch_bytes": 500}), change)
    assert nothing_left(tmp_path)


def test_folders_without_files(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "in/empty").mkdir(parents=True)
    with pytest.raises(InputError, match="no such file, or no file matches"):
        build(tmp_path, tokenizer)
    assert nothing_left(tmp_path)
    put(tmp_path, GOOD)
    assert texts(build(tmp_path, tokenizer)) == ["good"]


def test_loops_of_links(tmp_path: Path, tokenizer: Path) -> None:
    put(tmp_path, GOOD)
    (tmp_path / "in/loop").symlink_to(tmp_path / "in", target_is_directory=True)
    (tmp_path / "in/self").symlink_to(tmp_path / "in/self")
    assert texts(build(tmp_path, tokenizer)) == ["good"]


def test_ids_beyond_the_vocabulary_stop(
    make_job: Callable[..., TokenizeJob], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that gives ids which its own tokenizer does not have is found by the sample and not used."""
    from pamp_pipelines.tokenization import encoders

    encode = encoders.FastokensEncoder.encode

    def broken(self: Any, texts: Any) -> Any:
        ids, lengths = encode(self, texts)
        return (ids + 3000 if texts[0].startswith("document") else ids), lengths

    monkeypatch.setattr(encoders.FastokensEncoder, "encode", broken)
    events: list[Event] = []
    artifact = tokenize(make_job([f"document {i}" for i in range(20)], workers=1), events.append)
    assert "tokenizers" in artifact.manifest.stats["engine"]
    assert [e.data["message"].split(":")[0] for e in events if e.kind == "warning"] == [
        f"a sample of the documents has the ids that {artifact.manifest.stats['engine']} gives"
    ]
    assert not artifact.manifest.failed_checks


@pytest.mark.slow
def test_a_document_of_a_hundred_megabytes(tmp_path: Path, tokenizer: Path, plays: list[str]) -> None:
    text = "\n".join(plays)
    text = text * (100_000_000 // len(text) + 1)
    put(tmp_path, GOOD + json.dumps({"text": text}).encode() + b"\n" + GOOD)
    artifact = build(tmp_path, tokenizer)
    reader = IndexedReader(artifact.path / "train")
    assert len(reader) == 3
    assert len(reader[1]) > 20_000_000
    beginning = open_tokenizer(artifact.path).decode(reader[1][:2000].tolist())
    assert text.startswith(beginning)
    assert not artifact.manifest.failed_checks
