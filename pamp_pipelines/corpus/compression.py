"""Decompression by suffix. A stream that ends early is an error, never a shorter file."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import PurePath
from typing import BinaryIO, Protocol, cast

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")

_INPUT = 1 << 16
"""Compressed bytes fed at once; their decompressed text is in memory as a whole."""
_BUFFER = 1 << 20


def compression_of(name: str) -> str | None:
    """``.gz``, ``.zst``, ``.bz2``, ``.xz`` or None, by the last suffix."""
    suffix = PurePath(name).suffix.lower()
    return suffix if suffix in COMPRESSIONS else None


def decompress(raw: BinaryIO, name: str) -> io.BufferedReader:
    """The decompressed bytes of ``raw``, buffered; reading raises one of ``damage_errors()`` when it is damaged."""
    suffix = compression_of(name)
    stream = _FrameReader(raw, _decompressors()[suffix]) if suffix else cast(io.RawIOBase, raw)
    return io.BufferedReader(stream, _BUFFER)


def damage_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged or truncated file raises."""
    import pyarrow
    import zstandard

    return (
        EOFError,
        OSError,
        UnicodeDecodeError,
        zlib.error,
        lzma.LZMAError,
        zstandard.ZstdError,
        pyarrow.ArrowException,
    )


class _Decompressor(Protocol):
    """Decompresses one frame; what all four libraries have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _decompressors() -> dict[str, Callable[[], _Decompressor]]:
    import zstandard

    # `zstd --long=31` writes windows up to 2 GiB, which the default limit refuses
    zstd = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    gzip_header = 16 + zlib.MAX_WBITS
    return {
        ".gz": lambda: zlib.decompressobj(wbits=gzip_header),
        ".zst": zstd.decompressobj,
        ".bz2": bz2.BZ2Decompressor,
        ".xz": lzma.LZMADecompressor,
    }


class _FrameReader(io.RawIOBase):
    """Compressed frames one after another, with zero bytes allowed between and after them.

    The libraries' own file objects hide damage: zstandard's returns what it has when the input ends inside a frame,
    those of bz2 and lzma ignore whatever follows the first frame if it does not begin like another.
    """

    def __init__(self, raw: BinaryIO, new_frame: Callable[[], _Decompressor]) -> None:
        self._raw = raw
        self._new_frame = new_frame
        self._frame: _Decompressor | None = None
        self._frames = 0
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]
        while not self._ready:
            if not self._compressed:
                self._compressed = self._raw.read(_INPUT)
                if not self._compressed:
                    if self._frame is not None or self._frames == 0:
                        raise EOFError("the compressed data ends before its end mark")
                    return 0
            if self._frame is None:
                if self._frames:
                    self._compressed = self._compressed.lstrip(b"\0")
                    if not self._compressed:
                        continue
                self._frame = self._new_frame()
            self._ready = memoryview(self._frame.decompress(self._compressed))
            self._compressed = b""
            if self._frame.eof:
                self._compressed = self._frame.unused_data
                self._frame = None
                self._frames += 1
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
