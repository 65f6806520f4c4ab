"""Weights as raw bits: finding values that are no numbers, and converting types, without a tensor library.

Conversions round to nearest, ties to even, like torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pamp_pipelines.conversion.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType

Bits = npt.NDArray[np.unsignedinteger]


def non_finite(bits: Bits, dtype: DType) -> int:
    """Number of infinities and NaNs among the elements."""
    magnitude = bits & np.array(dtype.sign - 1, bits.dtype)
    if not magnitude.size or int(magnitude.max()) < dtype.infinity:
        return 0
    return int(np.count_nonzero(magnitude >= dtype.infinity))


def convert(bits: Bits, source: DType, target: DType) -> Bits:
    """The same values in another type, bit for bit what `tensor.to(dtype)` gives. Shape is kept.

    A finite value beyond float16's range becomes infinite, as in torch; callers compare `non_finite` before and after.
    """
    if source is target:
        return bits
    return _from_float32(_to_float32(bits, source), target)


def _to_float32(bits: Bits, source: DType) -> npt.NDArray[np.float32]:
    if source is BFLOAT16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if source is FLOAT16:
        return bits.view(np.float16).astype(np.float32)
    return bits.view(np.float32)


def _from_float32(values: npt.NDArray[np.float32], target: DType) -> Bits:
    if target is FLOAT32:
        return values.view(np.uint32)
    if target is FLOAT16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    # Adding just under half a unit, or exactly half where the kept part is odd, rounds ties to even.
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0  # rounding could turn a NaN's bits into infinity or carry into the sign
    return rounded
