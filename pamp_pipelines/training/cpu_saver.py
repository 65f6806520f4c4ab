"""Asynchronous saves where there is no CUDA device: Megatron's writing process asks for one, and relies on a copy.

On a GPU the copy to the host detaches what is written from what goes on training; here both lie in the same memory.
"""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Substitute the writing process and let tensors be copied; to be called before ``pretrain``."""
    from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async

    async_utils.PersistentAsyncCaller.async_loop = staticmethod(write_without_cuda)
    prepare = filesystem_async.FileSystemWriterAsync.prepare_write_data

    def prepare_copies(self: Any, plan: Any, planner: Any) -> None:
        prepare(self, plan, _Copies(planner))

    filesystem_async.FileSystemWriterAsync.prepare_write_data = prepare_copies


class _Copies:
    """A save planner whose tensors no longer change."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner

    def resolve_data(self, item: Any) -> Any:
        import torch

        data = self._planner.resolve_data(item)
        return data.detach().clone() if isinstance(data, torch.Tensor) else data


def write_without_cuda(*args: Any, **kwargs: Any) -> None:
    """What the writing process runs: Megatron's loop, whose class is as installed there."""
    import torch
    from megatron.core.dist_checkpointing.strategies.async_utils import PersistentAsyncCaller

    cuda: Any = torch.cuda
    cuda.device_count = lambda: 1
    cuda.set_device = cuda.synchronize = lambda *unused: None
    PersistentAsyncCaller.async_loop(*args, **kwargs)
