"""One payload of a `.distcp` file: what `torch.save` writes for one tensor or object, made and read without torch.

The container is a zip of stored (not compressed) records, `archive/data.pkl` and the raw bytes in `archive/data/0`
(torch `serialization.py`, format version 1). The raw bytes start at a multiple of 64 within the payload, so that a
reader can map them.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Buffer, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pamp_pipelines.conversion import restricted_pickle
from pamp_pipelines.conversion.dtypes import DTYPES, DType
from pamp_pipelines.conversion.pickle_writer import Call, Global, Persistent, dumps
from pamp_pipelines.errors import InputError

_ALIGNMENT = 64
_MAX_BYTES = 2**31 - 1 - 2**20
"""Largest tensor of one payload: beyond, the zip needs 64-bit fields, which shift the data off its alignment."""

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, OverflowError, RuntimeError, ValueError)
"""What zipfile raises for bytes that are wrong; a field of one may also name a feature that it does not have."""

_REBUILD = Global("torch._utils", "_rebuild_tensor_v2")
_ORDERED_DICT = Global("collections", "OrderedDict")


@dataclass(frozen=True)
class StoredArray:
    """Where the elements of a saved tensor lie.

    start: the byte of element 0 in the file. strides: in elements.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    @property
    def contiguous(self) -> bool:
        return self.strides == row_major(self.shape)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Window(io.RawIOBase):
    """A part of a file that behaves as a file of its own, since zip offsets count from the start of the payload."""

    def __init__(self, stream: IO[bytes], start: int, length: int | None = None) -> None:
        self._stream, self._start, self._length, self._position = stream, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return self._length is None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            end = self._length
            offset += self._stream.seek(0, io.SEEK_END) - self._start if end is None else end
        if offset < 0:
            raise OSError(f"position {offset} lies before the payload")
        self._position = offset
        return offset

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        if self._length is not None:
            view = view[: max(0, self._length - self._position)]
        try:
            self._stream.seek(self._start + self._position)
            data = self._stream.read(len(view))
        except OSError as error:
            raise _Unreadable(error) from error
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Buffer) -> int:
        self._stream.seek(self._start + self._position)
        count = self._stream.write(data)
        self._position += count
        return count


class _Unreadable(Exception):
    """Reading failed. No OSError, from which zipfile would conclude that the file is no zip."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Damaged(Exception):
    """The bytes of a payload are not what `torch.save` writes; says how."""


@contextmanager
def opened(stream: IO[bytes], start: int, length: int) -> Iterator[zipfile.ZipFile]:
    """The container of the payload at bytes [start, start + length).

    Raises:
        Damaged: it, or what the block reads of it, is not as it was written.
        OSError: it cannot be read, which says nothing about it.
    """
    try:
        with zipfile.ZipFile(Window(stream, start, length)) as archive:
            yield archive
    except _Unreadable as error:
        raise error.cause from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise Damaged(str(error)) from None  # of Window.seek
    except _DAMAGE as error:
        raise Damaged(str(error)) from None


def data_start(stream: IO[bytes], start: int, length: int, record: zipfile.ZipInfo) -> int:
    """The byte of the file at which a record's data begin, in the payload at bytes [start, start + length).

    Raises:
        zipfile.BadZipFile: its two headers differ, or it does not lie in the payload.
        OSError: it cannot be read.
    """
    head = record.header_offset
    if not 0 <= head <= length - _LOCAL_HEADER.size:
        raise zipfile.BadZipFile(f"{record.filename}: outside the payload")
    stream.seek(start + head)
    # PKWARE's APPNOTE 4.3.7: name and extra field follow the fixed part of the local header
    signature, _, flags, method, *_, name, extra = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    encoding = "utf-8" if record.flag_bits & 0x800 else "cp437"
    ours = (b"PK\x03\x04", flags, method, stream.read(name))
    if ours != (signature, record.flag_bits, record.compress_type, record.orig_filename.encode(encoding)):
        raise zipfile.BadZipFile(f"{record.filename}: the headers differ")
    data = start + head + _LOCAL_HEADER.size + name + extra
    if data + record.compress_size > start + length:
        raise zipfile.BadZipFile(f"{record.filename}: truncated")
    return data


def _tensor(storage: str, shape: tuple[int, ...]) -> Call:
    reference = Persistent(("storage", Global("torch", storage), "0", "cpu", math.prod(shape)))
    return Call(_REBUILD, (reference, 0, shape, row_major(shape), False, Call(_ORDERED_DICT, ())))


def write_tensor(stream: IO[bytes], dtype: DType, shape: tuple[int, ...], blocks: Iterable[Buffer]) -> int:
    """Appends the payload of one tensor to the end of the seekable `stream`; returns its length in bytes.

    blocks: the elements in row-major order, in pieces of any size.

    Raises:
        ValueError: the pieces do not add up to the shape, or the tensor is too large for one payload.
    """
    size = math.prod(shape) * dtype.itemsize
    if size > _MAX_BYTES:
        raise ValueError(f"{size} bytes are too many for one payload of at most {_MAX_BYTES}")
    written = 0

    def counted() -> Iterable[Buffer]:
        nonlocal written
        for block in blocks:
            written += memoryview(block).nbytes
            yield block

    length = _write(stream, dumps(_tensor(dtype.storage, shape)), counted())
    if written != size:
        raise ValueError(f"{written} bytes given for shape {list(shape)} of {dtype.name}, which takes {size}")
    return length


def write_object(stream: IO[bytes], value: Any) -> int:
    """Appends the payload of a plain object (dicts, lists, numbers, strings, `EMPTY`); returns its length in bytes."""
    return _write(stream, dumps(value), ())


EMPTY = _tensor("ByteStorage", (0,))
"""An empty uint8 tensor: the `_extra_state` that Transformer Engine and local layers alike take for "no state"."""


def _write(stream: IO[bytes], pickled: bytes, blocks: Iterable[Buffer]) -> int:
    window = Window(stream, stream.seek(0, io.SEEK_END))
    with zipfile.ZipFile(window, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        _record(archive, window, "data.pkl", (pickled,))
        _record(archive, window, ".format_version", (b"1",))
        _record(archive, window, ".storage_alignment", (str(_ALIGNMENT).encode(),))
        _record(archive, window, "byteorder", (b"little",))
        _record(archive, window, "data/0", blocks)
        _record(archive, window, "version", (b"3\n",))
    return window.seek(0, io.SEEK_END)


def _record(archive: zipfile.ZipFile, window: Window, name: str, blocks: Iterable[Buffer]) -> None:
    info = zipfile.ZipInfo(f"archive/{name}", (1980, 1, 1, 0, 0, 0))
    head = 30 + len(info.filename) + 4  # local header, name, head of the padding field
    padding = -(window.tell() + head) % _ALIGNMENT
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    with archive.open(info, "w") as record:
        for block in blocks:
            record.write(block)


def read_array(file: Path, stream: IO[bytes], start: int, length: int) -> StoredArray:
    """Where the tensor of the payload at bytes [start, start + length) lies; its elements are not read.

    Raises:
        InputError: the payload is damaged, holds no plain tensor, or names anything but one.
        OSError: it cannot be read.
    """
    where = f"{file} at byte {start}"
    try:
        with opened(stream, start, length) as archive:
            records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            pickled = archive.read(records["data.pkl"])
            order = archive.read(records["byteorder"]) if "byteorder" in records else b"little"
            starts = {name: data_start(stream, start, length, info) for name, info in records.items()}
    except Damaged as error:
        raise InputError(f"{where}: not a torch.save payload ({error})") from None
    if order != b"little":
        raise InputError(f"{where}: saved with byte order {order!r}; only little-endian is read")
    value = restricted_pickle.load(io.BytesIO(pickled), where, known=_KNOWN, persistent=_storage)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, _Rebuilt):
        raise InputError(f"{where}: holds a {type(value).__name__}, expected a tensor of weights")
    info = records.get(name := f"data/{value.storage.key}")
    if info is None or info.compress_type != zipfile.ZIP_STORED:
        raise InputError(f"{where}: the tensor's data are missing or compressed")
    needed = value.offset + sum((n - 1) * s for n, s in zip(value.shape, value.strides, strict=True)) + 1
    dtype = value.storage.dtype
    if math.prod(value.shape) and (needed * dtype.itemsize > info.file_size or min(value.strides, default=0) < 0):
        raise InputError(f"{where}: shape {list(value.shape)} reaches beyond the {info.file_size} bytes of data")
    return StoredArray(dtype, value.shape, value.strides, starts[name] + value.offset * dtype.itemsize)


@dataclass(frozen=True)
class _Storage:
    dtype: DType
    key: str


@dataclass(frozen=True)
class _Rebuilt:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _storage(pid: Any) -> _Storage:
    kind, storage, key, _location, _elements = pid
    if kind != "storage" or not isinstance(storage, DType):
        raise ValueError(f"storage {pid!r} is not of a weight type")
    return _Storage(storage, str(key))


def _rebuild_tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> _Rebuilt:
    return _Rebuilt(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _rebuild_parameter(tensor: _Rebuilt, *_: Any) -> _Rebuilt:
    return tensor


_KNOWN: dict[str, Any] = {f"torch.{dtype.storage}": dtype for dtype in DTYPES} | {
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
}
