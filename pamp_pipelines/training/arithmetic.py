"""Whether a GPU's products of float32 matrices may round their factors to TF32: what fp32 and tf32 differ in.

PyTorch does not unless it is told to, Transformer Engine always does: without a word to both, either precision would be
a mixture.
"""

from __future__ import annotations

import os

from pamp_pipelines.declarations.training_config import Precision

OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""Read by NVIDIA's libraries when they are loaded: 0 forbids TF32, whatever a program asks for."""


def forbid_or_allow_tf32(precision: Precision) -> None:
    """Tell NVIDIA's libraries and PyTorch; to be called before a CUDA context is made."""
    import torch

    if precision == "fp32":
        os.environ[OVERRIDE] = "0"
    elif precision == "tf32":
        os.environ.pop(OVERRIDE, None)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def rounds_to_tf32() -> bool:
    """Whether this process lets products of float32 matrices be in TF32."""
    import torch

    return torch.backends.cuda.matmul.allow_tf32 and os.environ.get(OVERRIDE) != "0"
