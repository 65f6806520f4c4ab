"""Megatron's IndexedDataset: token shards as a ``.bin`` and an ``.idx`` file.

``.bin`` holds the tokens of all documents one after another, little-endian, 2 bytes each (uint16) or 4 (int32).
``.idx``, little-endian, N = number of sequences, D = number of documents + 1:

    offset  bytes  content
    0       9      b"MMIDIDX\\0\\0"
    9       8      uint64 version, 1
    17      1      uint8 type of a token: 8 uint16, 4 int32
    18      8      uint64 N
    26      8      uint64 D
    34      4 N    int32 tokens in each sequence
            8 N    int64 offset of each sequence in .bin, in bytes
            8 D    int64 index of the first sequence of each document, then N

A document is one sequence here, so D = N + 1 and the last array is 0 … N. Read from
megatron/core/datasets/indexed_dataset.py of megatron-core 0.19.2; a test compares with what its builder writes.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from pamp_pipelines.errors import InputError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_CODES: dict[int, type[np.integer]] = {4: np.int32, 8: np.uint16}
_BLOCK = 1 << 20
"""Documents whose index is computed at once: 20 MB of memory."""

UINT16_VOCABULARY = 65_500
"""Vocabularies below this many ids fit uint16: the limit of Megatron's ``DType.optimal_dtype``."""

Tokens = npt.NDArray[Any]
"""Token ids of one or more documents, shape [tokens]."""
Lengths = npt.NDArray[np.int64]
"""Tokens in each document, shape [documents]."""


def dtype_for(vocab_size: int) -> type[np.integer]:
    """Type of a stored token, as Megatron chooses it."""
    return np.uint16 if vocab_size < UINT16_VOCABULARY else np.int32


def bin_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".idx")


class TokenStream:
    """Tokens of documents into one file, their lengths into another (little-endian int32); not yet with an index."""

    def __init__(self, tokens: Path, lengths: Path, dtype: type[np.integer]) -> None:
        self.path = tokens
        self.documents = 0
        self.tokens = 0
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._limit = int(np.iinfo(dtype).max)
        self._tokens: BinaryIO = tokens.open("wb", buffering=0)
        self._lengths: BinaryIO = lengths.open("wb")

    def add(self, tokens: Tokens, lengths: Lengths, eod_id: int | None = None) -> None:
        """Append documents.

        Args:
            tokens: ids of all of them, shape [tokens].
            lengths: tokens in each, shape [documents]; sums to ``len(tokens)``.
            eod_id: appended to each document.

        Raises:
            InputError: an id does not fit the type, or a document has 2^31 tokens or more.
        """
        if int(lengths.sum()) != len(tokens):
            raise ValueError(f"lengths sum to {int(lengths.sum())} but there are {len(tokens)} tokens")
        if len(tokens) and (int(tokens.max()) > self._limit or (tokens.dtype.kind == "i" and int(tokens.min()) < 0)):
            raise InputError(
                f"{self.path}: token id {int(tokens.max())} does not fit {self._dtype.name}; "
                "the tokenizer gives ids beyond its own vocabulary."
            )
        if len(lengths) and int(lengths.max()) >= np.iinfo(np.int32).max:
            raise InputError(f"{self.path}: a document of {int(lengths.max())} tokens; split it below 2^31.")
        stored = tokens.astype(self._dtype, copy=False)
        if eod_id is not None:
            stored, lengths = with_eod(stored, lengths, eod_id)
        _write_all(self._tokens, memoryview(np.ascontiguousarray(stored)).cast("B"))
        self._lengths.write(memoryview(np.ascontiguousarray(lengths, dtype="<i4")).cast("B"))
        self.documents += len(lengths)
        self.tokens += len(stored)

    def close(self) -> None:
        self._tokens.close()
        self._lengths.close()


def with_eod(tokens: Tokens, lengths: Lengths, eod_id: int) -> tuple[Tokens, Lengths]:
    """Append EOD to each document.

    Args:
        tokens: ids of all documents, [tokens].
        lengths: tokens in each, [documents].

    Returns:
        ids [tokens + documents] and lengths [documents], both with EOD.
    """
    out = np.empty(len(tokens) + len(lengths), tokens.dtype)
    start = 0
    # slice copies: three times as fast as numpy.insert or a boolean mask
    for shift, length in enumerate(lengths.tolist()):
        end = start + length
        out[start + shift : end + shift] = tokens[start:end]
        out[end + shift] = eod_id
        start = end
    return out, lengths + 1


def _write_all(stream: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[stream.write(data) :]


def write_index(prefix: Path, lengths: Path, dtype: type[np.integer]) -> None:
    """Write ``<prefix>.idx`` from a file of int32 lengths, in bounded memory."""
    documents = lengths.stat().st_size // 4
    code = next(code for code, type in _CODES.items() if type == dtype)
    width = np.dtype(dtype).itemsize
    with idx_path(prefix).open("wb") as idx, lengths.open("rb") as stream:
        idx.write(_HEADER.pack(_MAGIC, 1, code, documents, documents + 1))
        for block in _blocks(stream):
            idx.write(memoryview(block).cast("B"))
        offset = 0
        for block in _blocks(stream):
            starts = np.empty(len(block) + 1, "<i8")
            starts[0] = 0
            np.cumsum(block, dtype=np.int64, out=starts[1:])
            starts *= width
            starts += offset
            idx.write(memoryview(starts[:-1]).cast("B"))
            offset = int(starts[-1])
        for start in range(0, documents + 1, _BLOCK):
            idx.write(memoryview(np.arange(start, min(start + _BLOCK, documents + 1), dtype="<i8")).cast("B"))


def _blocks(stream: BinaryIO) -> Iterator[npt.NDArray[np.int32]]:
    stream.seek(0)
    while data := stream.read(4 * _BLOCK):
        yield np.frombuffer(data, dtype="<i4")


class IndexedWriter:
    """Streams documents into ``<prefix>.bin``; the index is written at the end of the ``with`` block.

    Memory does not grow with the number of documents: their lengths wait in ``<prefix>.lengths`` (removed afterwards).
    """

    def __init__(self, prefix: Path, dtype: type[np.integer]) -> None:
        self.prefix = prefix
        self._dtype = dtype
        self._lengths = prefix.with_name(prefix.name + ".lengths")
        self._stream = TokenStream(bin_path(prefix), self._lengths, dtype)

    @property
    def documents(self) -> int:
        return self._stream.documents

    @property
    def tokens(self) -> int:
        return self._stream.tokens

    def add(self, tokens: Tokens, lengths: Lengths) -> None:
        """As ``TokenStream.add``; the documents bring their own EOD."""
        self._stream.add(tokens, lengths)

    def close(self) -> None:
        """Write the index and close all files."""
        self._stream.close()
        write_index(self.prefix, self._lengths, self._dtype)
        self._lengths.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._stream.close()
            self._lengths.unlink(missing_ok=True)


class IndexedReader:
    """Random access to shards of one sequence a document, through memory maps.

    Attributes:
        dtype: type of a stored token.
        lengths: tokens in each document, int32 [documents].
        pointers: byte offset of each document in .bin, int64 [documents].
        document_indices: int64 [documents + 1].
        tokens: all tokens, [tokens].

    Raises:
        InputError: a file is absent, is not of this format, or its size is not what its header says.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        index = _map(idx_path(prefix))
        if len(index) < _HEADER.size:
            raise InputError(f"{idx_path(prefix)}: {len(index)} bytes are too few for an index; make the shards again.")
        magic, version, code, sequences, documents = _HEADER.unpack(index[: _HEADER.size].tobytes())
        if magic != _MAGIC or version != 1 or code not in _CODES:
            raise InputError(
                f"{idx_path(prefix)}: no index of token shards (magic {magic!r}, version {version}, type {code})."
            )
        expected = _HEADER.size + 12 * sequences + 8 * documents
        if len(index) != expected:
            raise InputError(f"{idx_path(prefix)}: {len(index)} bytes, but its header says {expected}; make it again.")
        self.dtype = np.dtype(_CODES[code])
        start = _HEADER.size
        self.lengths = np.frombuffer(index, "<i4", sequences, start)
        self.pointers = np.frombuffer(index, "<i8", sequences, start + 4 * sequences)
        self.document_indices = np.frombuffer(index, "<i8", documents, start + 12 * sequences)
        data = _map(bin_path(prefix))
        wanted = int(self.lengths.sum(dtype=np.int64)) * self.dtype.itemsize
        if len(data) != wanted:
            raise InputError(f"{bin_path(prefix)}: {len(data)} bytes, but its index says {wanted}; make it again.")
        self.tokens = np.frombuffer(data, self.dtype.newbyteorder("<"))

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    def __getitem__(self, document: int) -> Tokens:
        """Ids of one document, EOD included."""
        start = int(self.pointers[document]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.lengths[document])]


def _map(path: Path) -> npt.NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:
            return np.empty(0, np.uint8)  # an empty file cannot be mapped
        return np.memmap(path, mode="r", dtype=np.uint8)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}. Make the shards again.") from error
