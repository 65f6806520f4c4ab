"""Bytes of a checkpoint that are not those that were saved."""

import errno
import io
from pathlib import Path

import pytest
import torch

from pamp_pipelines.conversion import checksums
from pamp_pipelines.conversion.checksums import damaged_payload
from pamp_pipelines.conversion.dtypes import by_name
from pamp_pipelines.conversion.payload import read_array, write_tensor
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


def test_no_byte_of_a_payload_can_be_changed_into_an_error_of_this_program(checkpoint: Path) -> None:
    """Nor into one of its index that loads as if nothing were: a version or a method that zipfile does not know."""
    file = checkpoint / "__0_0.distcp"
    whole = file.read_bytes()
    length = whole.rindex(b"PK\x05\x06", 0, whole.index(torch.arange(100.0).numpy().tobytes())) + 22
    assert checksums.damage(file, [(0, length)]) is None
    entry = whole.index(b"PK\x01\x02")
    seen = set()
    for byte in range(length):
        for value in (whole[byte] ^ 1, whole[byte] ^ 255, 201):
            changed = bytearray(whole)
            changed[byte] = value
            file.write_bytes(changed)
            if checksums.damage(file, [(0, length)]):
                seen.add(byte)
            try:
                with file.open("rb", buffering=0) as stream:
                    read_array(file, stream, 0, length)
            except InputError:
                pass
    # of the first entry: the version that is needed, encryption, the method, CRC-32 and both sizes, offset, name
    needed = {6, 8, *range(10, 12), *range(16, 28), *range(42, 46), *range(46, 62)}
    assert {entry + place for place in needed} <= seen


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "common.pt"])
def test_a_file_that_cannot_be_read_is_not_damaged(
    checkpoint: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a file server that was away: from the first byte that is read to the last."""

    class Stale(io.FileIO):
        left = 0

        def readinto(self, buffer: object) -> int:
            self.fail()
            return super().readinto(buffer)  # type: ignore[arg-type]

        def read(self, size: int | None = -1) -> bytes:
            self.fail()
            return super().read(size)  # type: ignore[return-value]

        def fail(self) -> None:
            Stale.left -= 1
            if Stale.left < 0:
                raise OSError(errno.ESTALE, "Stale file handle")

    opened = Path.open

    def stale(path: Path, mode: str = "r", buffering: int = -1, *rest: object) -> object:
        if path.name != name:
            return opened(path, mode, buffering, *rest)  # type: ignore[call-overload]
        return Stale(path) if buffering == 0 else io.BufferedReader(Stale(path))

    monkeypatch.setattr(Path, "open", stale)
    for reads in range(100):
        Stale.left = reads
        try:
            problem = damaged_payload(checkpoint)
        except OSError:
            continue
        assert problem is None
        assert reads
        return
    pytest.fail("never read to its end")
