"""Whether the bytes of a checkpoint are those that were saved: the CRC-32 that `torch.save` writes beside each record.

Loading does not look at them (torch is built without that check), so a flipped bit becomes a weight or a moment.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

from pamp_pipelines.conversion.payload import Damaged, data_start, opened
from pamp_pipelines.conversion.torch_dist import StoredCheckpoint, read_checkpoint

_THREADS = 8
_BLOCK = 2**20
"""What is read at once: it stays in the processor's cache until it is summed."""


def damaged_payload(directory: Path) -> str | None:
    """Words for a payload of a checkpoint whose bytes are not as saved; None when all are. Reads the whole of it.

    Raises:
        InputError: as ``read_checkpoint``: the index is damaged, or a file is missing or too short.
        OSError: a file cannot be read. That is no damage: another attempt may find all as it was saved.
    """
    files = _payloads(read_checkpoint(directory))
    for file in directory.glob("*.pt"):
        files[file.name] = [(0, file.stat().st_size)]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda name: damage(directory / name, files[name]), sorted(files))
        return next((words for words in found if words), None)


def _payloads(checkpoint: StoredCheckpoint) -> dict[str, list[tuple[int, int]]]:
    """Start and length of every payload, by file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for tensor in checkpoint.tensors.values():
        for chunk in tensor.chunks:
            found.setdefault(chunk.file, []).append((chunk.start, chunk.length))
    for one in checkpoint.objects.values():
        found.setdefault(one.file, []).append((one.start, one.length))
    return found


def damage(file: Path, payloads: Iterable[tuple[int, int]]) -> str | None:
    """Words for the first of these payloads, (start, length) in `file`, whose bytes are not as saved; else None.

    Raises:
        OSError: as ``damaged_payload``.
    """
    buffer = memoryview(bytearray(_BLOCK))
    with file.open("rb", buffering=0) as stream:
        for start, length in sorted(payloads):
            try:
                with opened(stream, start, length) as archive:
                    for record in archive.infolist():
                        if _crc(stream, data_start(stream, start, length, record), record, buffer) != record.CRC:
                            return f"{file} at byte {start}: {record.filename} is not as it was saved (CRC-32)"
            except Damaged as error:
                return f"{file} at byte {start}: not as it was saved ({error})"
    return None


def _crc(stream: FileIO, start: int, record: zipfile.ZipInfo, buffer: memoryview) -> int:
    """Of a record as its bytes are now. torch.save compresses none, so they can be read through a buffer."""
    if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
        raise zipfile.BadZipFile(f"{record.filename}: compressed")
    return file_crc(stream, start, record.compress_size, buffer)


def file_crc(stream: FileIO, start: int, length: int, buffer: memoryview) -> int:
    """CRC-32 of bytes [start, start + length) of a file, or of what it has of them, read through the buffer."""
    stream.seek(start)
    left, crc = length, 0
    while left and (count := stream.readinto(buffer[:left])):
        crc = zlib.crc32(buffer[:count], crc)
        left -= count
    return crc
