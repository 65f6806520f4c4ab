"""Content hashes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.text import printable


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
