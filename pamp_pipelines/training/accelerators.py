"""Known accelerators: what fits on them, and what they could compute at best."""

from __future__ import annotations

from dataclasses import dataclass

from pamp_pipelines.declarations.training_config import Precision
from pamp_pipelines.errors import InputError

GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """One GPU.

    Args:
        name: as in ``--gpu-type``.
        memory_gib: what a process can allocate, GiB: the capacity without the driver's share.
        peak_tflops: dense matrix products, TFLOP/s, by the kind of number: ``bf16`` (fp16 too), ``fp8``, ``tf32``,
            ``fp32`` (which no tensor core multiplies).
        marks: words in the name that ``torch.cuda.get_device_name`` gives, all of which must occur.
    """

    name: str
    memory_gib: float
    peak_tflops: dict[str, float]
    marks: tuple[str, ...]

    def peak(self, precision: Precision) -> float | None:
        """TFLOP/s at best in a training precision; None where the device has no such arithmetic."""
        kind = "fp8" if precision.startswith("fp8") else "bf16" if precision == "fp16" else precision
        return self.peak_tflops.get(kind)


# NVIDIA's data sheets, without sparsity, rounded as there: H200, H100 SXM, B200, A100 SXM, L40S
_KNOWN = (
    Accelerator("H200", 139.0, {"bf16": 989.0, "fp8": 1979.0, "tf32": 494.5, "fp32": 67.0}, ("H200",)),
    Accelerator("H100", 79.0, {"bf16": 989.0, "fp8": 1979.0, "tf32": 494.5, "fp32": 67.0}, ("H100",)),
    Accelerator("B200", 178.0, {"bf16": 2250.0, "fp8": 4500.0, "tf32": 1125.0, "fp32": 75.0}, ("B200",)),
    Accelerator("A100-80GB", 79.0, {"bf16": 312.0, "tf32": 156.0, "fp32": 19.5}, ("A100", "80GB")),
    Accelerator("A100-40GB", 39.0, {"bf16": 312.0, "tf32": 156.0, "fp32": 19.5}, ("A100", "40GB")),
    Accelerator("L40S", 44.0, {"bf16": 362.0, "fp8": 733.0, "tf32": 183.0, "fp32": 91.6}, ("L40S",)),
)

NAMES = tuple(known.name for known in _KNOWN)


def accelerator(name: str) -> Accelerator:
    """The one of this name, in any case.

    Raises:
        InputError: not known; lists those that are.
    """
    for known in _KNOWN:
        if known.name.lower() == name.lower():
            return known
    raise InputError(f"no GPU type {name!r} is known; known are {', '.join(NAMES)}")


def recognise(device_name: str) -> Accelerator | None:
    """The one that ``torch.cuda.get_device_name`` names; None for an unknown one, whose peak nobody should invent."""
    for known in _KNOWN:
        if all(mark in device_name for mark in known.marks):
            return known
    return None
