"""Corpora in a bucket: listed, pinned and read in ranges, from a real S3 server."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from pamp_pipelines.corpus.fingerprints import fingerprint, unchanged
from pamp_pipelines.corpus.readers import ReadingRules, parquet_columns, read_documents
from pamp_pipelines.corpus.sources import expand, open_source, stat_source
from pamp_pipelines.errors import InputError, StorageError
from pamp_pipelines.lake import remote
from tests.s3_server import S3Server, _s3_server, forget_clients, own_clients, s3

__all__ = ["_s3_server", "own_clients", "s3"]

TEXTS = [f"text {number}" for number in range(50)]
LINES = "".join(f'{{"text": "{text}"}}\n' for text in TEXTS).encode()


@pytest.fixture
def corpus(s3: S3Server) -> str:
    """URL of a folder with two JSONL files, one of them hidden, and a Parquet file."""
    url = f"{s3.bucket()}/corpora/tiny"
    store = s3fs.S3FileSystem()
    store.pipe(f"{url}/b.jsonl", LINES)
    store.pipe(f"{url}/a.jsonl", LINES)
    store.pipe(f"{url}/.half.jsonl", LINES)
    out = io.BytesIO()
    wide = ["".join(chr(97 + (n * n + i) % 26) for i in range(20_000)) for n in range(500)]
    table = pa.table({"text": [f"text {n}" for n in range(500)], "other": wide})
    pq.write_table(table, out, compression="none", use_dictionary=False, row_group_size=100)
    store.pipe(f"{url}/wide.parquet", out.getvalue())
    return url


def texts(url: str, format: str = "jsonl") -> list[str]:
    (file,) = fingerprint(expand([url], Path("/")))
    with unchanged(file):
        rules = ReadingRules(format=format)  # type: ignore[arg-type]
        return [row.text for row in read_documents(file, rules)]  # type: ignore[union-attr]


def test_globs_folders_and_files(corpus: str) -> None:
    assert [file.url for file in expand([f"{corpus}/*.jsonl"], Path("/"))] == [f"{corpus}/a.jsonl", f"{corpus}/b.jsonl"]
    assert len(expand([corpus], Path("/"))) == 3
    assert texts(f"{corpus}/a.jsonl") == TEXTS


def test_of_a_parquet_file_only_the_ranges_of_the_column_are_read(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{corpus}/wide.parquet"
    fetched: list[int] = []
    fetch = s3fs.S3File._fetch_range

    def counted(self: s3fs.S3File, start: int, end: int) -> bytes:
        fetched.append(end - start)
        return bytes(fetch(self, start, end))

    monkeypatch.setattr(s3fs.S3File, "_fetch_range", counted)
    monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", 1 << 16)
    with open_source(url) as raw:
        read = [text for (column,) in parquet_columns(raw, url, ["text"]) for text in column]
    assert read == [f"text {n}" for n in range(500)]
    assert len(fetched) > 1
    assert sum(fetched) < stat_source(url)[0] / 4


def test_an_object_that_is_written_again_is_found_out(corpus: str) -> None:
    (file,) = fingerprint(expand([f"{corpus}/a.jsonl"], Path("/")))
    s3fs.S3FileSystem().pipe(f"{corpus}/a.jsonl", LINES.replace(b"text 7", b"text 8"))
    with pytest.raises(InputError, match="is not what it was when the corpus was scanned"), unchanged(file):
        pass
    s3fs.S3FileSystem().rm_file(f"{corpus}/a.jsonl")
    with pytest.raises(InputError, match="the file has disappeared"), unchanged(file):
        pass


@pytest.fixture
def impatient(own_clients: None, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"connect_timeout": 1, "retries": {"max_attempts": 1, "mode": "standard"}}
    monkeypatch.setitem(remote._DEFAULTS, "s3", {"config_kwargs": options})


@pytest.mark.usefixtures("impatient")
def test_a_server_that_goes_away_while_it_is_read(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", 1 << 16)
    gone = False
    fetch = s3fs.S3File._fetch_range

    def fetch_range(self: s3fs.S3File, start: int, end: int) -> bytes:
        if gone:
            raise ConnectionResetError("gone")
        return bytes(fetch(self, start, end))

    monkeypatch.setattr(s3fs.S3File, "_fetch_range", fetch_range)
    with open_source(f"{corpus}/wide.parquet") as raw:
        assert len(raw.read(1000)) == 1000
        gone = True
        with pytest.raises(StorageError, match="does not answer"):
            raw.read(1 << 20)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    forget_clients()
    with pytest.raises(StorageError, match="does not answer"):
        expand([f"{corpus}/*.jsonl"], Path("/"))


@pytest.mark.usefixtures("own_clients")
def test_without_credentials(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    forget_clients()
    with pytest.raises(InputError, match=r"cannot be listed: .*no credentials; set AWS_ACCESS_KEY_ID"):
        expand([f"{corpus}/*.jsonl"], Path("/"))
