"""Lets Megatron run where there is no CUDA device: for rehearsal, tests and small models.

``install`` is called before the first ``import megatron`` and does nothing where there is a CUDA device. Megatron has
no device switch: it asks ``torch.cuda`` for the current device, and passes ``device="cuda"`` to tensor factories. Both
are answered with the CPU here. ``torch.cuda.is_available`` stays false, so that torch itself never calls CUDA.

Written for megatron-core 0.19.2.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _Stream:
    """A CUDA stream on a device that runs everything in order: waiting is never needed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        event = event or _Event()
        event.record()
        return event

    def synchronize(self) -> None: ...


class _Event:
    """A CUDA event: it has happened as soon as it is recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._recorded = 0.0

    def record(self, stream: Any = None) -> None:
        self._recorded = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: _Event) -> float:
        """Milliseconds between two recordings."""
        return (later._recorded - self._recorded) * 1e3


class _DeviceProperties:
    """What Megatron prints about a device; compute capability 8.0 lets it use plain code paths."""

    name = "cpu"
    major = 8
    minor = 0
    total_memory = 0
    multi_processor_count = 1


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


class _OnCpu(TorchFunctionMode):
    """Sends every torch call that names a CUDA device to the CPU instead: factories, ``to``, ``cuda``, ``new_*``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron's optimizers sort and assert on the names of CUDA tensor types
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if func is torch.Tensor.to and any(_is_cuda(arg) for arg in args):
            args = tuple(_CPU if _is_cuda(arg) else arg for arg in args)
        return func(*args, **kwargs)


def _answer(value: Any) -> Callable[..., Any]:
    """A new function each time: torch's dynamo refuses one function object under two names of torch."""
    return lambda *args, **kwargs: value


def install() -> bool:
    """Make the substitutions for the rest of this process, in the calling thread.

    Returns:
        Whether they were made, i.e. whether there is no CUDA device.
    """
    if torch.cuda.is_available():
        return False
    _answer_device_questions()
    _share_the_generator()
    _adapt_distributed()
    # the jit fuser compiles at import, and asks the accelerator for its stream
    torch.compile = lambda model=None, **kwargs: model if model is not None else (lambda function: function)  # type: ignore[assignment]
    _OnCpu().__enter__()
    _adapt_megatron()
    return True


def _answer_device_questions() -> None:
    cuda: Any = torch.cuda
    # used as `device=` argument and, by initialize_model_parallel, as a count of what can be parallel
    cuda.current_device = lambda: _CPU
    cuda.device_count = _answer(1)
    cuda.set_device = _answer(None)
    cuda.get_device_properties = _answer(_DeviceProperties())
    cuda.get_device_name = _answer("cpu")
    cuda.get_device_capability = _answer((_DeviceProperties.major, _DeviceProperties.minor))
    cuda.Stream, cuda.Event = _Stream, _Event
    stream = _Stream()
    cuda.current_stream = _answer(stream)
    cuda.default_stream = _answer(stream)
    cuda.set_stream = _answer(None)
    cuda.stream = lambda stream=None: contextlib.nullcontext()
    cuda.is_current_stream_capturing = _answer(False)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(cuda, name, _answer(None))
    # memory of the device is reported as zero, never as the host's
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, _answer(0))
    cuda.memory_stats = _answer({})
    cuda.nvtx.range_push = _answer(None)
    cuda.nvtx.range_pop = _answer(None)


def _share_the_generator() -> None:
    """The "CUDA" generator is the CPU's: Megatron's tracker then forks and saves the one that dropout uses."""

    def seed(value: int) -> None:
        # not torch.manual_seed, which calls torch.cuda.manual_seed_all and so would come back here
        torch.default_generator.manual_seed(int(value))

    for module in (torch.cuda, torch.cuda.random):
        cuda: Any = module
        cuda.manual_seed = functools.partial(seed)
        cuda.manual_seed_all = functools.partial(seed)
        cuda.get_rng_state = lambda device=None: torch.get_rng_state()
        cuda.set_rng_state = lambda state, device=None: torch.set_rng_state(state)


def _adapt_distributed() -> None:
    distributed: Any = torch.distributed
    barrier = distributed.barrier
    # device_ids exists for NCCL only
    distributed.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group=group, async_op=async_op)


def _adapt_megatron() -> None:
    import megatron.core.tensor_parallel.random as tracker
    import megatron.core.transformer.moe.token_dispatcher as dispatcher

    # these reach into torch._C for the generator of the device
    tracker._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    tracker._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    # converts to host lists only `if tensor.is_cuda`, and all_to_all wants no tensors as sizes
    dispatcher.maybe_move_tensor_to_cpu = on_host

    import megatron.training.initialize as initialize
    import megatron.training.training as training

    # asserts that CUDA is available unless told otherwise; pretrain has no argument for it
    training.initialize_megatron = functools.partial(initialize.initialize_megatron, allow_no_cuda=True)
