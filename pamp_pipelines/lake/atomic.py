"""Single files that are either whole or absent: temporary sibling, fsync, rename, fsync of the folder."""

import contextlib
import ctypes
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def fsync_dir(path: Path) -> None:
    """Make renames inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose content becomes ``path`` when the block ends well; readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp gives 0600; artifacts are shared with the group and read by others
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    fsync_dir(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically; readers see the old file or the new one."""
    with writing(path) as stream:
        stream.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Indented UTF-8 JSON with a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_NOT_SUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(first: Path, second: Path) -> bool:
    """Let two existing paths swap their names in one step; False where the system or the file system cannot.

    Directories cannot be renamed over each other, and two renames leave an instant, or after a crash for ever, in which
    there is nothing under the name.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_SUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))
