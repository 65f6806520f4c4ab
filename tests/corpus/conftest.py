import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from pamp_pipelines.corpus.fingerprints import fingerprint
from pamp_pipelines.corpus.sources import Location, SourceFile

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.fixture(params=list(COMPRESS), ids=lambda s: s or "plain")
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def put(put_raw: Callable[[str, bytes], SourceFile]) -> Callable[..., SourceFile]:
    """Write a file, compressed by its suffix and then cut to a share of its bytes, and pin it."""

    def write(name: str, data: bytes, keep: float = 1.0) -> SourceFile:
        data = COMPRESS.get(Path(name).suffix, bytes)(data)
        return put_raw(name, data[: int(len(data) * keep)])

    return write


@pytest.fixture
def put_raw(tmp_path: Path) -> Callable[[str, bytes], SourceFile]:
    """Write a file as it is and pin it."""

    def write(name: str, data: bytes) -> SourceFile:
        (tmp_path / name).write_bytes(data)
        return fingerprint([Location(str(tmp_path / name), name)])[0]

    return write
