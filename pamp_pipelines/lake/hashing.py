"""Content hashes."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from pamp_pipelines.errors import InputError
from pamp_pipelines.text import printable

_THREADS = 8
"""Files that are hashed at once; hashing lets go of the interpreter."""
_BLOCK = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb", buffering=0) as stream:
        return sha256_stream(stream)


def sha256_stream(stream: BinaryIO | FileIO, stopped: threading.Event | None = None) -> str:
    """Hex SHA-256 of the bytes up to the end of a stream, or up to where it was ``stopped``."""
    digest = hashlib.sha256()
    while (block := stream.read(_BLOCK)) and not (stopped and stopped.is_set()):
        digest.update(block)
    return digest.hexdigest()


def sha256_files(paths: Sequence[Path]) -> list[str]:
    """``sha256_file`` of each, several at once."""

    def hash_one(path: Path, stopped: threading.Event) -> str:
        with path.open("rb", buffering=0) as stream:
            return sha256_stream(stream, stopped)

    return in_threads(hash_one, paths)


def in_threads[Item, Result](
    function: Callable[[Item, threading.Event], Result], items: Iterable[Item]
) -> list[Result]:
    """Results of a function that hashes, in order. The event is set when they are wanted no more, so that a cancel
    waits for no file."""
    stopped = threading.Event()
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            return list(pool.map(lambda item: function(item, stopped), items))
        except BaseException:
            stopped.set()
            raise


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of ``value`` as canonical JSON (sorted keys, no spaces, UTF-8).

    Raises:
        InputError: it holds the name of a file that is not UTF-8.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        around = printable(text[max(0, error.start - 100) : error.end + 100])
        raise InputError(f"a name is not UTF-8; rename the file or folder: …{around}…") from None
    return hashlib.sha256(data).hexdigest()
