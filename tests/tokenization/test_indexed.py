import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization import indexed
from pamp_pipelines.tokenization.indexed import (
    IndexedReader,
    IndexedWriter,
    bin_path,
    dtype_for,
    idx_path,
    with_eod,
    write_index,
)

Batch = list[list[int]]
BATCHES = st.lists(st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=9), max_size=6), max_size=6)
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def flat(documents: Batch) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([t for d in documents for t in d], np.uint32),
        np.array([len(d) for d in documents], np.int64),
    )


def write(prefix: Path, batches: list[Batch], dtype: type[np.integer]) -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        for batch in batches:
            writer.add(*flat(batch))
    return prefix


@PROPERTY
@given(batches=BATCHES, dtype=st.sampled_from([np.uint16, np.int32]), block=st.sampled_from([1, 3, 1 << 20]))
def test_what_is_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[Batch], dtype: type[np.integer], block: int
) -> None:
    monkeypatch.setattr(indexed, "_BLOCK", block)
    reader = IndexedReader(write(tmp_path / "a.b", batches, dtype))
    documents = [d for batch in batches for d in batch]
    assert [reader[i].tolist() for i in range(len(reader))] == documents
    assert reader.dtype == dtype
    assert int(reader.lengths.sum()) == len(reader.tokens) == sum(map(len, documents))
    assert reader.document_indices.tolist() == list(range(len(documents) + 1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.b.bin", "a.b.idx"]


@PROPERTY
@given(documents=st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=8))
def test_eod_follows_each_document_once(documents: Batch) -> None:
    tokens, lengths = with_eod(*flat(documents), 0)
    assert tokens.tolist() == [t for d in documents for t in [*d, 0]]
    assert lengths.tolist() == [len(d) + 1 for d in documents]


def test_type_by_vocabulary() -> None:
    assert dtype_for(65_499) is np.uint16
    assert dtype_for(65_500) is np.int32


@pytest.mark.parametrize("ids", [[65_536], [-1]])
def test_an_id_that_does_not_fit_is_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(InputError, match="does not fit uint16"), IndexedWriter(tmp_path / "a", np.uint16) as writer:
        writer.add(np.array(ids, np.int64), np.array([1]))
    assert not idx_path(tmp_path / "a").exists()


def test_lengths_must_cover_the_tokens(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lengths sum to 3"), IndexedWriter(tmp_path / "a", np.uint16) as writer:
        writer.add(np.array([1, 2]), np.array([3]))


def test_offsets_beyond_four_gigabytes(tmp_path: Path) -> None:
    """Three documents of 2^30 tokens, in a sparse file."""
    lengths = tmp_path / "lengths"
    np.full(3, 1 << 30, "<i4").tofile(lengths)
    write_index(tmp_path / "a", lengths, np.int32)
    with bin_path(tmp_path / "a").open("wb") as stream:
        stream.truncate(3 << 32)
        stream.seek((3 << 32) - 4)
        stream.write(np.array([7], "<i4").tobytes())
    reader = IndexedReader(tmp_path / "a")
    assert reader.pointers.tolist() == [0, 1 << 32, 2 << 32]
    assert int(reader[2][-1]) == 7
    assert len(reader.tokens) == 3 << 30


@pytest.mark.parametrize("file", ["bin", "idx"])
@pytest.mark.parametrize("damage", ["absent", "cut", "longer", "empty"])
def test_damage_is_named(tmp_path: Path, file: str, damage: str) -> None:
    prefix = write(tmp_path / "a", [[[1, 2], [3]]], np.uint16)
    path = tmp_path / f"a.{file}"
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-1], "longer": data + b"\0", "empty": b"", "absent": b""}[damage])
    if damage == "absent":
        path.unlink()
    with pytest.raises(InputError, match=rf"a\.{file}: .*again"):
        IndexedReader(prefix)


def test_another_format_is_named(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", [[[1]]], np.uint16)
    data = bytearray(idx_path(prefix).read_bytes())
    for offset, value in ((0, 0), (9, 2), (17, 5)):
        changed = data.copy()
        changed[offset] = value
        idx_path(prefix).write_bytes(changed)
        with pytest.raises(InputError, match="no index of token shards"):
            IndexedReader(prefix)


def test_the_index_of_a_million_documents_needs_no_python_loop(tmp_path: Path) -> None:
    lengths = np.full(1_000_000, 3, np.int64)
    with IndexedWriter(tmp_path / "a", np.uint16) as writer:
        writer.add(np.zeros(3_000_000, np.uint32), lengths)
        started = time.process_time()
    assert time.process_time() - started < 0.5  # 0.03 s when idle; a loop takes about 0.6 s for the offsets alone
    assert IndexedReader(tmp_path / "a").pointers[-1] == 6 * 999_999
