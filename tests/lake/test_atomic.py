"""Single files that are whole or absent, also for a reader in another process and after a kill."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pamp_pipelines.lake.atomic import exchange, write_bytes, write_json, write_text

WRITER = """
import sys
from pathlib import Path
from pamp_pipelines.lake.atomic import write_bytes
path = Path(sys.argv[1])
while True:
    for letter in b"ab":
        write_bytes(path, bytes([letter]) * 300_000)
"""


def test_a_reader_and_a_kill_see_whole_files(tmp_path):
    path = tmp_path / "file"
    write_bytes(path, b"a" * 300_000)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    seen = set()
    deadline = time.monotonic() + 20
    while len(seen) < 2 or time.monotonic() < deadline - 19:
        assert time.monotonic() < deadline, "the writer did not write"
        data = path.read_bytes()
        assert len(data) == 300_000
        assert len(set(data)) == 1
        seen.add(data[0])
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    data = path.read_bytes()
    assert len(data) == 300_000
    assert len(set(data)) == 1


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_text(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert [f.name for f in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_files_are_readable_by_others_and_folders_are_made(tmp_path):
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"ä": 1})
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text() == '{\n  "ä": 1\n}\n'


def test_exchange_swaps_folders_or_says_that_it_cannot(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    swapped = exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/is").read_text() == ("b" if swapped else "a")
    if swapped:
        with pytest.raises(FileNotFoundError):
            exchange(tmp_path / "a", tmp_path / "absent")
