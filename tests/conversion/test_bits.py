"""Conversions between types are torch's, for every 16-bit pattern and for float32 at its edges."""

import numpy as np
import pytest
import torch

from pamp_pipelines.conversion.bits import convert, non_finite
from pamp_pipelines.conversion.dtypes import BFLOAT16, DTYPES, FLOAT16, FLOAT32, DType, by_name
from pamp_pipelines.errors import InputError


def patterns(dtype: DType) -> np.ndarray:
    if dtype.itemsize == 2:
        return np.arange(2**16, dtype=np.uint16)
    random = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    high = np.arange(2**16, dtype=np.uint32) << 16
    # exactly half way between two bfloat16, and one bit to either side
    ties = np.concatenate([high + d for d in (0x7FFF, 0x8000, 0x8001)]).astype(np.uint32)
    return np.concatenate([random, high, ties])


def as_torch(bits: np.ndarray, dtype: DType) -> torch.Tensor:
    signed = torch.from_numpy(bits.view(np.int16 if dtype.itemsize == 2 else np.int32))
    return signed.view(getattr(torch, dtype.name))


@pytest.mark.parametrize("target", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("source", DTYPES, ids=lambda d: d.name)
def test_convert_is_torchs(source: DType, target: DType) -> None:
    bits = patterns(source)
    ours = as_torch(convert(bits, source, target), target)
    theirs = as_torch(bits, source).to(getattr(torch, target.name))
    nan = torch.isnan(theirs)
    assert torch.equal(torch.isnan(ours), nan)
    integer = torch.int16 if target.itemsize == 2 else torch.int32
    assert torch.equal(ours.view(integer)[~nan], theirs.view(integer)[~nan])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_non_finite_is_torchs(dtype: DType) -> None:
    bits = patterns(dtype)
    assert non_finite(bits, dtype) == int((~torch.isfinite(as_torch(bits, dtype).float())).sum())
    assert non_finite(bits[:5], dtype) == 0
    assert non_finite(bits[:0], dtype) == 0


def test_names() -> None:
    assert by_name("torch.bfloat16") is BFLOAT16
    assert [by_name(n) for n in ("float32", "float16")] == [FLOAT32, FLOAT16]
    with pytest.raises(InputError, match="int8"):
        by_name("int8")


def test_a_type_stays_itself_in_another_process() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(BFLOAT16)) is BFLOAT16
