"""Hashing several files at once."""

import hashlib
import threading
from pathlib import Path

import pytest

from pamp_pipelines.lake.hashing import in_threads, sha256_file, sha256_files


def test_each_file_has_its_own_hash(tmp_path: Path) -> None:
    contents = [bytes([i]) * (i * 300_000) for i in range(20)]
    paths = [tmp_path / str(i) for i in range(20)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    expected = [hashlib.sha256(content).hexdigest() for content in contents]
    assert sha256_files(paths) == expected == [sha256_file(path) for path in paths]


def test_a_failure_ends_the_others() -> None:
    """One that is cancelled does not read the rest of ten terabytes first."""
    begun = threading.Barrier(2)

    def work(item: int, stopped: threading.Event) -> None:
        begun.wait(60)
        if item == 0:
            raise FileNotFoundError
        assert stopped.wait(60)

    with pytest.raises(FileNotFoundError):
        in_threads(work, [0, 1])
