"""Bytes of a checkpoint that are not those that were saved."""

from pathlib import Path

import pytest
import torch

from pamp_pipelines.conversion.checksums import damaged_payload
from pamp_pipelines.conversion.dtypes import by_name
from pamp_pipelines.conversion.payload import write_tensor
from pamp_pipelines.conversion.torch_dist import StoredChunk, StoredTensor, write_index
from pamp_pipelines.errors import InputError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two tensors in one file, the second written by torch, and a file of torch's beside them."""
    file = tmp_path / "__0_0.distcp"
    with file.open("w+b") as stream:
        first = write_tensor(stream, by_name("float32"), (16,), [bytes(range(64))])
        torch.save(torch.arange(100.0), stream)
    places = [StoredChunk((0,), (16,), file.name, 0, first)]
    places.append(StoredChunk((0,), (100,), file.name, first, file.stat().st_size - first))
    tensors = [
        StoredTensor(name, by_name("float32"), place.size, (place,)) for name, place in zip("ab", places, strict=True)
    ]
    write_index(tmp_path, tensors, [])
    torch.save({"step": 1}, tmp_path / "common.pt")
    return tmp_path


def test_a_whole_checkpoint_has_no_damage(checkpoint: Path) -> None:
    assert damaged_payload(checkpoint) is None


@pytest.mark.parametrize("name", ["__0_0.distcp", "common.pt"])
def test_no_flipped_bit_of_the_data_goes_unseen(checkpoint: Path, name: str) -> None:
    file = checkpoint / name
    whole = file.read_bytes()
    known = [bytes(range(64)), torch.arange(100.0).numpy().tobytes()] if name == "__0_0.distcp" else [b"step"]
    for data in known:
        place = whole.index(data)
        for byte in (place, place + len(data) - 1):
            file.write_bytes(whole[:byte] + bytes([whole[byte] ^ 4]) + whole[byte + 1 :])
            problem = damaged_payload(checkpoint)
            assert problem is not None
            assert problem.startswith(f"{file} at byte ")
            assert "not as it was saved" in problem
    file.write_bytes(whole)
    assert damaged_payload(checkpoint) is None


def test_a_payload_without_its_end_is_damage_too(checkpoint: Path) -> None:
    file = checkpoint / "common.pt"
    file.write_bytes(file.read_bytes()[:-30])
    assert "not as it was saved" in (damaged_payload(checkpoint) or "")
    (checkpoint / "__0_0.distcp").write_bytes(b"short")
    with pytest.raises(InputError, match="truncated"):
        damaged_payload(checkpoint)
