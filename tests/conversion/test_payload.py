"""Payloads: ours are read by torch, torch's are read by us, and neither side runs anything."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pamp_pipelines.conversion.dtypes import BFLOAT16, DTYPES, FLOAT32, DType
from pamp_pipelines.conversion.payload import EMPTY, read_array, write_object, write_tensor
from pamp_pipelines.errors import InputError


def read(file: Path, start: int, length: int) -> np.ndarray:
    with file.open("rb") as stream:
        array = read_array(file, stream, start, length)
    strides = tuple(s * array.dtype.itemsize for s in array.strides)
    data = np.memmap(file, np.uint8, "r")
    return np.ndarray(array.shape, array.dtype.carrier, data, array.start, strides).copy()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(3, 4), (1, 5, 7), (6,), (1, 1)])
def test_torch_reads_ours(tmp_path: Path, dtype: DType, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(getattr(torch, dtype.name))
    data = tensor.view(torch.uint8).numpy().tobytes()
    file = tmp_path / "x.distcp"
    with file.open("xb+") as stream:
        stream.write(b"seven..")  # payloads follow each other at any byte
        length = write_tensor(stream, dtype, shape, [data[:3], data[3:]])
        assert stream.seek(0, io.SEEK_END) == 7 + length
    payload = file.read_bytes()[7:]
    loaded = torch.load(io.BytesIO(payload), weights_only=True)
    assert loaded.dtype == tensor.dtype
    assert torch.equal(loaded, tensor)
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        assert archive.testzip() is None  # checksums are real
    ours = read(file, 7, length)
    assert ours.shape == shape
    assert ours.tobytes() == data
    with file.open("rb") as stream:
        assert (read_array(file, stream, 7, length).start - 7) % 64 == 0


def layouts() -> dict[str, torch.Tensor]:
    base = torch.arange(60.0).reshape(6, 10)
    return {
        "contiguous": base.clone(),
        "transposed": base.t(),
        "rows of a larger tensor": base[2:4],
        "columns of a larger tensor": base[:, 3:5],
        "parameter": torch.nn.Parameter(base.clone()),
        "bfloat16": base.bfloat16(),
        "stacked": base.reshape(1, 6, 10),
    }


@pytest.mark.parametrize("name", list(layouts()))
@pytest.mark.parametrize("wrapped", [False, True])
def test_we_read_torchs(tmp_path: Path, name: str, wrapped: bool) -> None:
    tensor = layouts()[name]
    buffer = io.BytesIO()
    torch.save([tensor] if wrapped else tensor, buffer)
    file = tmp_path / "x.distcp"
    file.write_bytes(b"before" + buffer.getvalue() + b"after")
    bits = read(file, 6, len(buffer.getvalue()))
    assert torch.equal(torch.from_numpy(bits.view(f"i{bits.itemsize}")).view(tensor.dtype), tensor.detach())


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"open({self.path!r}, 'w').close()",)


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    buffer = io.BytesIO()
    torch.save([torch.ones(2), Evil(str(mark))], buffer)
    file = tmp_path / "x.distcp"
    file.write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match=r"names __builtin__\.exec"):
        read(file, 0, len(buffer.getvalue()))
    assert not mark.exists()
    torch.load(file, weights_only=False)
    assert mark.exists(), "the payload is harmless, so the test proves nothing"


def damaged() -> dict[str, bytes]:
    buffer = io.BytesIO()
    torch.save(torch.ones(100), buffer)
    whole = buffer.getvalue()
    integers = io.BytesIO()
    torch.save(torch.ones(3, dtype=torch.int64), integers)
    number = io.BytesIO()
    torch.save([5], number)
    return {
        "truncated": whole[:-200],
        "no payload": b"hello" * 30,
        "empty": b"",
        "index beyond the data": whole.replace(pickle.dumps(100, 2)[2:-1] + b"t", b"K\x7ft").replace(
            b"Kd\x85", b"K\x7f\x85"
        ),
        "integers": integers.getvalue(),
        "no tensor": number.getvalue(),
    }


@pytest.mark.parametrize("name", list(damaged()))
def test_damage_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.distcp"
    file.write_bytes(damaged()[name])
    with pytest.raises(InputError, match=r"x\.distcp at byte 0"):
        read(file, 0, file.stat().st_size)


def test_objects() -> None:
    value = [{"iteration": 0, "version": 3.0, "name": "é", "flag": True, "nothing": None, "list": [1, -2, 2**40]}]
    stream = io.BytesIO()
    length = write_object(stream, value)
    assert length == len(stream.getvalue())
    assert torch.load(io.BytesIO(stream.getvalue()), weights_only=True) == value
    stream = io.BytesIO()
    write_object(stream, [EMPTY])
    (tensor,) = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, (0,))


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="4 bytes given"):
        write_tensor(io.BytesIO(), FLOAT32, (2,), [b"abcd"])
    with pytest.raises(ValueError, match="too many"):
        write_tensor(io.BytesIO(), BFLOAT16, (2**20, 2**12), [])
