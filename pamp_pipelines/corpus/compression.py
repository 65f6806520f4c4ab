"""Decompression by suffix. A stream that ends early is an error, never a shorter file."""

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import PurePath
from typing import BinaryIO, cast

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")

_BUFFER = 1 << 20


def compression_of(name: str) -> str | None:
    """``.gz``, ``.zst``, ``.bz2``, ``.xz`` or None, by the last suffix."""
    suffix = PurePath(name).suffix.lower()
    return suffix if suffix in COMPRESSIONS else None


def decompress(raw: BinaryIO, name: str) -> io.BufferedReader:
    """The decompressed bytes of ``raw``, buffered; reading raises one of ``damage_errors()`` when it is damaged."""
    match compression_of(name):
        case ".gz":
            stream: io.RawIOBase = cast(io.RawIOBase, gzip.GzipFile(fileobj=raw, mode="rb"))
        case ".zst":
            stream = _ZstdReader(raw)
        case ".bz2":
            stream = cast(io.RawIOBase, bz2.BZ2File(raw))
        case ".xz":
            stream = cast(io.RawIOBase, lzma.LZMAFile(raw))  # noqa: SIM115
        case _:
            stream = cast(io.RawIOBase, raw)
    return io.BufferedReader(stream, _BUFFER)


def damage_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged or truncated file raises."""
    import pyarrow
    import zstandard

    return (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError, pyarrow.ArrowException)


class _ZstdReader(io.RawIOBase):
    """Zstandard frames one after another.

    zstandard's own stream_reader returns what it has when the input ends inside a frame; this one raises EOFError.
    """

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        # `zstd --long=31` writes windows up to 2 GiB, which the default limit refuses
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame = self._decompressor.decompressobj()
        self._started = False
        self._raw = raw
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]
        while not self._ready:
            if self._frame.eof:
                self._compressed = self._frame.unused_data
                self._frame = self._decompressor.decompressobj()
                self._started = False
            if not self._compressed:
                self._compressed = self._raw.read(_BUFFER)
                if not self._compressed:
                    if self._started:
                        raise EOFError("compressed file ended inside a Zstandard frame")
                    return 0
            self._started = True
            data, self._compressed = self._compressed, b""
            self._ready = memoryview(self._frame.decompress(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
