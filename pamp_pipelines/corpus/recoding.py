"""Text of a declared encoding as UTF-8, block by block."""

import codecs
import io
from typing import BinaryIO

from pamp_pipelines.corpus.compression import decompress
from pamp_pipelines.declarations.corpus import Encoding

_BLOCK = 1 << 20


def decompressed(raw: BinaryIO, name: str, encoding: Encoding) -> io.BufferedReader:
    """The text of a file in UTF-8, its compression undone.

    Raises while it is read:
        UnicodeDecodeError: the bytes are not of the declared encoding; names the byte. UTF-8 is not checked here.
    """
    stream = decompress(raw, name)
    return stream if encoding == "utf-8" else io.BufferedReader(_Recoder(stream, encoding), _BLOCK)


class _Recoder(io.RawIOBase):
    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]
        while not self._ready and not self._ended:
            block = self._stream.read(_BLOCK)
            self._ended = not block
            # one byte order mark at the start belongs to the encoding, not to the text
            self._ready = memoryview(self._decoder.decode(block, final=self._ended).encode())
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
