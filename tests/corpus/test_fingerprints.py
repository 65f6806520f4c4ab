import hashlib
import os
from pathlib import Path

import pytest

from pamp_pipelines.corpus import fingerprints
from pamp_pipelines.corpus.fingerprints import fingerprint, unchanged
from pamp_pipelines.corpus.sources import Location
from pamp_pipelines.errors import InputError


@pytest.fixture
def location(tmp_path: Path) -> Location:
    path = tmp_path / "a.txt"
    path.write_text("first")
    os.utime(path, (1e9, 1e9))
    return Location(str(path), "a.txt")


def rewrite(location: Location, text: str, at: float) -> None:
    Path(location.url).write_text(text)
    os.utime(location.url, (at, at))


def test_untouched_files_are_not_read_again(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache.json"
    first = fingerprint([location], cache)
    assert first[0].sha256 == hashlib.sha256(b"first").hexdigest()
    monkeypatch.setattr(fingerprints, "_hash", lambda _: pytest.fail("read again"))
    assert [file.sha256 for file in fingerprint([location], cache)] == [file.sha256 for file in first]


def test_a_file_of_equal_size_and_other_time_is_read_again(location: Location, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    fingerprint([location], cache)
    rewrite(location, "other", 1.1e9)
    assert fingerprint([location], cache)[0].sha256 == hashlib.sha256(b"other").hexdigest()


def test_a_file_written_just_now_is_not_remembered(location: Location, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    Path(location.url).write_text("fresh")
    stamp = Path(location.url).stat().st_mtime_ns
    fingerprint([location], cache)
    Path(location.url).write_text("newer")
    os.utime(location.url, ns=(stamp, stamp))
    assert fingerprint([location], cache)[0].sha256 == hashlib.sha256(b"newer").hexdigest()


def test_a_damaged_cache_costs_time_only(location: Location, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    for damage in ("{", "[1]", '{"x": 3}', "null"):
        cache.write_text(damage)
        assert fingerprint([location], cache)[0].bytes == 5


def test_a_hash_that_was_changed_is_not_believed(location: Location, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    first = fingerprint([location], cache)
    text = cache.read_text()
    assert first[0].sha256 in text
    cache.write_text(text.replace(first[0].sha256, "0" * 64))
    assert fingerprint([location], cache) == first


def test_a_cache_that_cannot_be_written_costs_time_only(location: Location) -> None:
    assert fingerprint([location], Path(location.url) / "cache.json")[0].bytes == 5


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.txt: the file has disappeared"):
        fingerprint([Location(str(tmp_path / "gone.txt"), "gone.txt")])


def test_other_content_is_refused_before_reading(location: Location) -> None:
    (file,) = fingerprint([location])
    rewrite(location, "other", 1e9)
    with pytest.raises(InputError, match="Materialise raw_corpus again"), unchanged(file):
        pytest.fail("the block ran")


def test_a_file_that_grows_while_it_is_read_is_refused(location: Location) -> None:
    (file,) = fingerprint([location])
    with pytest.raises(InputError, match="was written while it was read"), unchanged(file):
        Path(location.url).write_text("first and more")


def test_a_file_that_disappears_while_it_is_read_is_refused(location: Location) -> None:
    (file,) = fingerprint([location])
    with pytest.raises(InputError, match="has disappeared"), unchanged(file):
        Path(location.url).unlink()


def test_an_error_inside_the_block_is_kept(location: Location) -> None:
    (file,) = fingerprint([location])
    with pytest.raises(OSError, match="No space left"), unchanged(file):
        raise OSError(28, "No space left on device")
