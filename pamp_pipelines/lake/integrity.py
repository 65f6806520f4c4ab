"""Whether an artifact's files still have the content that its manifest promises, without reading them each time.

A file whose size, modification time and inode are those of its last full comparison is not read again. What was
compared is remembered beside the artifact; a lake that was copied or restored is read once.
"""

import json
from collections.abc import Collection
from pathlib import Path

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact, find, read_manifest, verify_files
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.events import OnEvent, event, ignore
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.manifest import MANIFEST, ArtifactRef, Manifest
from pamp_pipelines.lake.staging import looking, obtainable, stage

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


@looking()
def find_intact(path: Path, id: str, on_event: OnEvent = ignore) -> Artifact | None:
    """The finished artifact with this ``id`` at ``path`` that a stage need not make again, as its content is intact.

    Damage is told by a ``warning`` and gives None: whoever makes it replaces it. Of a remote lake, only what is here is
    compared; nothing is fetched.
    """
    artifact = find(path, id)
    if artifact is None:
        return None
    try:
        return require_intact_artifact(artifact)
    except VerificationFailed as error:
        damage = str(error).splitlines()[:-1]  # the last line says to delete it, which is not needed here
        on_event(event("warning", message="\n".join([*damage, f"{path}: is damaged, so it is made again."])))
        return None


def require_intact_input(directory: Path, kinds: Collection[str]) -> tuple[ArtifactRef, ...]:
    """The artifact of one of the ``kinds`` that a plain directory is, or lies in, after comparing its content.

    Nothing for a directory without a manifest, or with that of another program.

    Raises:
        VerificationFailed: lists every file that is missing or of other size or content.
    """
    for place in (directory, *directory.parents[:3]):
        if (place / MANIFEST).is_file():
            try:
                manifest = read_manifest(place / MANIFEST)
            except InputError:
                continue
            if manifest.kind in kinds:
                return (require_intact_artifact(Artifact(place, manifest)).ref,)
    return ()


def _state(file: Path) -> _State:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _recall(memory: Path) -> dict[str, list[object]]:
    try:
        found = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
