"""JSON files of what is costly to find out again, with a checksum: what was damaged is not believed."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pamp_pipelines.lake.atomic import write_text


def remember(path: Path, content: Any) -> None:
    """Write ``content``, which must be JSON, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, json.dumps({"sha256": _sha256(content), "content": content}))


def recall(path: Path) -> Any:
    """What ``remember`` wrote there; None where the file is absent, cannot be read or is damaged."""
    try:
        found = json.loads(path.read_bytes())
        return found["content"] if found["sha256"] == _sha256(found["content"]) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _sha256(content: Any) -> str:
    # in ASCII, so that names of files that are not UTF-8 have one too
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
