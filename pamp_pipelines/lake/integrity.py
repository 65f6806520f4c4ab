"""Whether an artifact's files still have the content that its manifest promises, without reading them each time.

A file whose size, modification time and inode are those of its last full comparison is not read again. What was
compared is remembered beside the artifact; a lake that was copied or restored is read once.
"""

import json
from pathlib import Path

from pamp_pipelines.errors import VerificationFailed
from pamp_pipelines.lake.artifact import Artifact, verify_files
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.lake.staging import obtainable, stage

_State = list[int]


def memory_of(path: Path) -> Path:
    """Where it is remembered which files of the artifact (or record) at ``path`` were found intact."""
    return path.parent / f".{path.name}.intact.json"


def remember(root: Path, manifest: Manifest, memory: Path) -> None:
    """Note that the files have just been hashed for the manifest."""
    write_json(memory, {entry.path: [entry.sha256, _state(root / entry.path)] for entry in manifest.files})


def require_intact(root: Path, manifest: Manifest, memory: Path) -> None:
    """Compare the files below ``root`` with the manifest, reading those that may have changed.

    In a remote lake the files that are away are fetched first, and leased.

    Raises:
        VerificationFailed: lists every file that is missing or of other size or content.
    """
    compared = stage(root, manifest)
    verify_files(root, manifest, "size")
    known = _recall(memory)
    wrong = []
    news = bool(compared)
    for entry in manifest.files:
        file = root / entry.path
        if entry.path in compared or (not file.exists() and obtainable(root, manifest)):
            continue
        if known.get(entry.path) == [entry.sha256, _state(file)]:
            continue
        news = True
        if (digest := sha256_file(file)) != entry.sha256:
            wrong.append(f"{file}: its content is damaged (SHA-256 {digest}, the manifest says {entry.sha256})")
    if wrong:
        raise VerificationFailed("\n".join([*wrong, f"{root}: delete what is damaged and materialise it again."]))
    if news:
        try:
            remember(root, manifest, memory)
        except OSError:
            return  # a read-only lake is compared each time


def require_intact_artifact(artifact: Artifact) -> Artifact:
    """The artifact, if its files have the content that its manifest promises.

    Raises:
        VerificationFailed: lists every file that is missing or of other size or content.
    """
    require_intact(artifact.path, artifact.manifest, memory_of(artifact.path))
    return artifact


def _state(file: Path) -> _State:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _recall(memory: Path) -> dict[str, list[object]]:
    try:
        found = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
