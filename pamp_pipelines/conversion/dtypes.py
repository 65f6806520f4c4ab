"""Element types of weights and their names in each format. bfloat16 has no numpy type: its bits travel as uint16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pamp_pipelines.errors import InputError

DTypeName = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class DType:
    """name: as torch spells it. safetensors: as a safetensors header spells it. storage: torch's storage class.

    carrier: numpy type that holds the bits. infinity: bits of +inf; larger magnitudes are NaN. sign: bit of the sign.
    """

    name: DTypeName
    safetensors: str
    storage: str
    itemsize: int
    carrier: str
    infinity: int
    sign: int

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name, (self.name,)  # in another process too, a type is one object


FLOAT32 = DType("float32", "F32", "FloatStorage", 4, "<u4", 0x7F800000, 0x80000000)
BFLOAT16 = DType("bfloat16", "BF16", "BFloat16Storage", 2, "<u2", 0x7F80, 0x8000)
FLOAT16 = DType("float16", "F16", "HalfStorage", 2, "<u2", 0x7C00, 0x8000)
DTYPES = (FLOAT32, BFLOAT16, FLOAT16)


def by_name(name: str) -> DType:
    """The type that torch calls `name` (`bfloat16`, also `torch.bfloat16`).

    Raises:
        InputError: no weight type of that name.
    """
    for dtype in DTYPES:
        if name.removeprefix("torch.") == dtype.name:
            return dtype
    raise InputError(f"dtype {name!r} is not one of {', '.join(d.name for d in DTYPES)}")
