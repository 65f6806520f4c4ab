"""Whether this machine has Megatron, which exists for Linux only."""

import sys
from importlib.util import find_spec

from pamp_pipelines.errors import InputError


def require_megatron(purpose: str) -> None:
    """Say so before a worker is started that could only fail.

    Args:
        purpose: what needs it, at the start of a sentence.

    Raises:
        InputError: megatron-core is not installed.
    """
    if find_spec("megatron") is not None:
        return
    where = (
        "install the project's locked dependencies with `make setup`"
        if sys.platform.startswith("linux")
        else f"it has no build for {sys.platform}: use a Linux machine or a Linux container; declarations, the UI, "
        "tokenization, conversion, export and evaluation work here"
    )
    raise InputError(f"{purpose} needs megatron-core, which is not installed; {where}")
