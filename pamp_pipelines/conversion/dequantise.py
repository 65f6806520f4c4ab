"""8-bit floats with a scale for each block, as bfloat16 bits (format: fp8.py).

Values as in DeepSeek's `fp8_cast_bf16.py`: float32(x) * scale, rounded to bfloat16 to nearest, ties to even.

Axes: R  rows of a weight    C  its columns    c  blocks along the columns
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import numpy.typing as npt

from pamp_pipelines.conversion.bits import Bits, convert
from pamp_pipelines.conversion.dtypes import DTYPES, FLOAT32
from pamp_pipelines.conversion.fp8 import TARGET, Scale
from pamp_pipelines.errors import InputError


def read_scales(scale: Scale, row: int, rows: int) -> npt.NDArray[np.float32]:
    """Factors of rows [row, row + rows) of the weight: float32 [R, c].

    Raises:
        InputError: the file ends before them.
    """
    low, high = row // scale.block[0], (row + rows - 1) // scale.block[0] + 1
    dtype = next(d for d in DTYPES if d.safetensors == scale.dtype)
    with scale.file.open("rb") as stream:
        count = (high - low) * scale.per_row * dtype.itemsize
        data = os.pread(stream.fileno(), count, scale.start + low * scale.per_row * dtype.itemsize)
    if len(data) != count:
        raise InputError(f"{scale.file}: became shorter while it was read")
    values = convert(np.frombuffer(data, dtype.carrier), dtype, FLOAT32).view(np.float32).reshape(-1, scale.per_row)
    return values[np.arange(row, row + rows) // scale.block[0] - low]


def dequantise(raw_RC: npt.NDArray[np.uint8], scale: Scale, row: int) -> Bits:
    """bfloat16 bits [R, C] of rows of a weight that begin at `row`."""
    factors_Rc = read_scales(scale, row, len(raw_RC))
    values_RC = _values()[raw_RC]
    for column in range(scale.per_row):
        values_RC[:, column * scale.block[1] : (column + 1) * scale.block[1]] *= factors_Rc[:, column, None]
    return convert(values_RC.view(np.uint32), FLOAT32, TARGET)


@cache
def _values() -> npt.NDArray[np.float32]:
    """The value of each byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, NaN at 0x7F."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 0xF, byte & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(byte & 0x7F) == 0x7F] = np.nan
    return np.where(byte & 0x80, -magnitude, magnitude).astype(np.float32)
