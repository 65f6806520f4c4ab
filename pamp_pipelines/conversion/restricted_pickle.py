"""Reading pickles of checkpoints without running anything they name.

No object of a foreign class is built and nothing is imported: a class that the pickle names becomes an `Inert` stand-in
that only keeps what the pickle says about it. A name outside the allowed modules is refused, since a checkpoint has no
use for it.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping
from typing import IO, Any

from pamp_pipelines.conversion.pickle_bounds import require_bounded
from pamp_pipelines.errors import InputError

_MODULES = (
    "torch.distributed.checkpoint.",
    "megatron.core.dist_checkpointing.",
)
"""Modules whose classes may stand in a `.metadata` file, all of them as inert stand-ins."""

_TORCH_TYPES = frozenset({"Size", "device", "layout", "memory_format", "dtype"})


class Inert:
    """Stands for an object of the class `origin`: `args` of its constructor, `state` that was to be set on it."""

    __slots__ = ("args", "state")  # an index holds three of them for each chunk
    origin = ""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.args = getattr(self, "args", ())
        self.state = state

    def __getitem__(self, field: str) -> Any:
        """A field of a dataclass; None where the pickle does not set it."""
        return self.state.get(field) if isinstance(self.state, Mapping) else None

    def __repr__(self) -> str:
        return f"<{self.origin}>"


def _inert(origin: str) -> type[Inert]:
    return type(origin.rsplit(".", 1)[-1], (Inert,), {"origin": origin, "__slots__": ()})


def _size(values: Any = ()) -> tuple[int, ...]:
    return _shared(tuple(int(v) for v in values))


@functools.lru_cache(maxsize=100_000)
def _shared(size: tuple[int, ...]) -> tuple[int, ...]:
    """The same size as one object: an index holds each offset twice, and has few shapes."""
    return size


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: IO[bytes], known: Mapping[str, Any], persistent: Callable[[Any], Any] | None) -> None:
        super().__init__(stream)
        self._known = {
            "torch.Size": _size,
            "collections.OrderedDict": dict,
            "builtins.set": set,
            "builtins.frozenset": frozenset,
            **known,
        }
        self._persistent = persistent

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._known:
            if module == "torch" and (name in _TORCH_TYPES or name.islower()):
                # torch.bfloat16 and other constants are pickled as a bare name
                self._known[full] = full if name.islower() else _inert(full)
            elif full == "torch.serialization._get_layout" or module == "pathlib" or module.startswith(_MODULES):
                self._known[full] = _inert(full)
            else:
                raise _Refused(full)
        return self._known[full]

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise _Refused("a persistent id")
        return self._persistent(pid)


class _Refused(Exception):
    """The pickle names something that a checkpoint does not hold."""


def load(
    stream: IO[bytes],
    where: str,
    *,
    known: Mapping[str, Any] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Unpickles `stream`, which is at its beginning; classes come back as `Inert`, torch dtypes as strings.

    Args:
        where: the file, for messages.
        known: further names and what stands for them.
        persistent: resolves persistent ids (storages of a torch.save payload).

    Raises:
        InputError: the pickle names something outside the allowed modules, or is damaged.
        OSError: the stream cannot be read, which says nothing about the pickle.
    """
    try:
        require_bounded(stream.read())  # before a damaged one takes all memory
        stream.seek(0)
        return _Unpickler(stream, known or {}, persistent).load()
    except _Refused as refused:
        raise InputError(
            f"{where}: the pickle names {refused}, which no checkpoint needs; nothing was run. "
            "Do not use this file unless you know where it comes from."
        ) from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        raise InputError(f"{where}: damaged pickle ({type(error).__name__}: {error})") from error
