"""Content hashes of large input files, remembered so that a job can be resolved often and cheaply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.hashing import sha256_file


def digests(files: Iterable[Path], root: Path, cache: Path | None) -> list[tuple[str, str]]:
    """(path below `root`, SHA-256) of each file, sorted.

    cache: folder in which digests are remembered by path, size and modification time; None reads every file.

    Raises:
        InputError: one of them is no file, which is found before any is read.
    """
    files = list(files)
    if problems := [words for file in files if (words := no_file(file))]:
        raise InputError("\n".join(problems))
    return sorted((file.relative_to(root).as_posix(), _digest(file, cache)) for file in files)


def no_file(path: Path) -> str | None:
    """Why there is nothing to read at a path; a pipe would be waited for without an end. None for a file."""
    if path.is_file():
        return None
    if path.is_symlink() and not path.exists():
        return f"{path}: a link to {path.readlink()}, which is not there; download the file again or mend the link"
    return f"{path}: not a file; download it again" if path.exists() else f"{path}: missing"


def _digest(file: Path, cache: Path | None) -> str:
    if cache is None:
        return sha256_file(file)
    status = file.stat()
    path = str(file.resolve())
    state = [path, status.st_size, status.st_mtime_ns, status.st_ino]
    entry = cache / f"{hashlib.sha256(path.encode()).hexdigest()[:32]}.json"
    try:
        known = json.loads(entry.read_text())
        if known["state"] == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError):
        pass  # absent, or from an interrupted or other version: computed again
    digest = sha256_file(file)
    write_json(entry, {"state": state, "sha256": digest})
    return digest
