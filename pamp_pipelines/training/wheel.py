"""Two substitutions in the Megatron of the wheel, on every machine. Written for megatron-core 0.19.2."""

from __future__ import annotations

import queue
from typing import Any


def skip_compilation() -> None:
    """Use the dataset library as shipped.

    At start Megatron runs ``make`` to compile it, and ends the process when that fails; the wheel holds the library
    built, and no Makefile. To be called before ``pretrain``.
    """
    import megatron.core.datasets.utils as utils

    utils.compile_helpers = lambda: None


def save_in_process(args: Any) -> None:
    """Let a synchronous save collect its results in a queue of this process.

    Megatron starts a manager process for it, which imports torch again: seconds and some hundred MB on every rank. Only
    asynchronous saves write in another process.
    """
    import megatron.core.dist_checkpointing.strategies.filesystem_async as writer

    if not args.async_save:
        writer._results_queue = queue.Queue()
