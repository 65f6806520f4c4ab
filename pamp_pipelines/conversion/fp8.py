"""Weights stored as 8-bit floats with one scale for each block of rows and columns (DeepSeek-V3).

Format: tensor `X.weight` of F8_E4M3 and `X.weight_scale_inv`, the factor of each block; `weight_block_size` in
config.json. The arithmetic is in dequantise.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.conversion.dtypes import BFLOAT16

STORED = "F8_E4M3"
SCALE_SUFFIX = "_scale_inv"
TARGET = BFLOAT16


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the scales of one weight lie. dtype: as safetensors spells it. block: rows and columns that share one."""

    file: Path
    start: int
    dtype: str
    columns: int
    """Columns C of the weight."""
    block: tuple[int, int]

    @property
    def per_row(self) -> int:
        """Scales along the columns."""
        return math.ceil(self.columns / self.block[1])


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the tensor of scales of a weight."""
    return tuple(math.ceil(n / b) for n, b in zip(shape, block, strict=True))
