"""Energy that a GPU has used, from the counter of NVIDIA's management library, which comes with the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

LIBRARY = "libnvidia-ml.so.1"


def energy_meter(uuid: str, load: Callable[[str], Any] = ctypes.CDLL) -> Callable[[], float] | None:
    """A function that gives the joules that a GPU has used since its driver was loaded.

    Args:
        uuid: of the GPU, with or without the ``GPU-`` in front: its number depends on CUDA_VISIBLE_DEVICES.
        load: opens the library.

    Returns:
        None where there is no such library or no such counter (before Volta, and in some virtual machines).
    """
    try:
        nvml = load(LIBRARY)
    except OSError:
        return None
    device = ctypes.c_void_p()
    name = (uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").encode()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(device)):
        return None
    counter = ctypes.c_ulonglong()

    def joules() -> float:
        if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(counter)):
            return float("nan")
        return counter.value / 1000.0

    # a counter that cannot be read now never can
    return joules if joules() >= 0.0 else None
