"""Writing the few pickles of a checkpoint without importing the classes they name.

The pickle module can only name classes that it can import; with this writer an import needs no torch at all. Opcodes
are those of protocol 2 (CPython `pickletools.py`), the protocol that torch itself uses.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any


@dataclass(frozen=True)
class Global:
    """A class or constant by name."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """The result of calling `function` with `args`."""

    function: Global
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Instance:
    """An object of `cls` made without its constructor, then given `state` (a dict of fields, or for __setstate__)."""

    cls: Global
    state: Any


@dataclass(frozen=True)
class Persistent:
    """A persistent id: torch resolves it to a storage."""

    id: tuple[Any, ...]


@dataclass
class _Writer:
    out: IO[bytes]
    memo: dict[Global | str, int] = field(default_factory=dict)

    def write(self, value: Any) -> None:
        match value:
            case Global():
                self._once(value, f"c{value.module}\n{value.name}\n".encode())
            case str():
                encoded = value.encode()
                self._once(value, b"X" + struct.pack("<I", len(encoded)) + encoded)
            case None | bool() | int() | float():
                self.out.write(pickle.dumps(value, 2)[2:-1])  # between PROTO and STOP
            case Call():
                self.write(value.function)
                self.write(value.args)
                self.out.write(b"R")
            case Instance():
                self.write(value.cls)
                self.out.write(b")\x81")
                if value.state:
                    self.write(value.state)
                    self.out.write(b"b")
            case Persistent():
                self.write(value.id)
                self.out.write(b"Q")
            case tuple():
                self._sequence(b"(", value, b"t")
            case list():
                self._sequence(b"](", value, b"e")
            case Mapping():
                self._sequence(b"}(", (x for pair in value.items() for x in pair), b"u")
            case _:
                raise TypeError(f"cannot pickle {type(value).__name__}")

    def _sequence(self, before: bytes, values: Iterable[Any], after: bytes) -> None:
        self.out.write(before)
        for value in values:
            self.write(value)
        self.out.write(after)

    def _once(self, key: Global | str, opcodes: bytes) -> None:
        """Names and strings repeat for every chunk: written once, referred to afterwards."""
        number = self.memo.get(key)
        if number is not None:
            self.out.write(b"j" + struct.pack("<I", number))
            return
        number = self.memo[key] = len(self.memo)
        self.out.write(opcodes + b"r" + struct.pack("<I", number))


def dump(value: Any, stream: IO[bytes]) -> None:
    """Writes the pickle of plain values and of the classes above. Mappings and sequences may be lazy."""
    stream.write(b"\x80\x02")
    _Writer(stream).write(value)
    stream.write(b".")


def dumps(value: Any) -> bytes:
    """What `dump` writes."""
    stream = io.BytesIO()
    dump(value, stream)
    return stream.getvalue()
