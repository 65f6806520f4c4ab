"""Reading artifacts; a reader never trusts a directory without checking its manifest."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.hashing import sha256_file
from pamp_pipelines.lake.manifest import MANIFEST, ArtifactRef, Manifest
from pamp_pipelines.lake.staging import obtainable, stage

Verify = Literal["none", "size", "hash"]


@dataclass(frozen=True)
class Artifact:
    """A finished artifact on storage."""

    path: Path
    manifest: Manifest

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def content(self) -> str:
        return self.manifest.content

    @property
    def kind(self) -> str:
        return self.manifest.kind

    @property
    def ref(self) -> ArtifactRef:
        return ArtifactRef(kind=self.kind, id=self.id, content=self.content)

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.manifest.files)


def read_manifest(file: Path, remedy: str | None = None) -> Manifest:
    """Parse a manifest file.

    Args:
        file: to read.
        remedy: what to do about a damaged one, where that is not to make the artifact again.

    Raises:
        InputError: absent, not JSON, or not a manifest; names the file.
    """
    try:
        return Manifest.model_validate(json.loads(file.read_text()))
    except FileNotFoundError:
        raise InputError(f"{file}: no manifest; the artifact was never finished. Materialise it again.") from None
    except ValidationError as error:
        fields = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg'].lower()}" for e in error.errors()]
        listed = "; ".join(fields[:3]) + (f"; and {len(fields) - 3} more" if len(fields) > 3 else "")
        otherwise = "If it is another program's, name another folder; otherwise delete the artifact and make it again."
        raise InputError(f"{file}: not a manifest of pamp_pipelines ({listed}). {remedy or otherwise}") from None
    except (OSError, ValueError, RecursionError) as error:
        otherwise = "Delete the artifact and make it again."
        raise InputError(f"{file}: not a readable manifest ({error}). {remedy or otherwise}") from None


def verify_files(root: Path, manifest: Manifest, verify: Verify = "size") -> None:
    """Compare the files under ``root`` with the manifest.

    In a remote lake, files that are published may be away; ``hash`` fetches them.

    Raises:
        VerificationFailed: lists every file that is missing, of another size or (``hash``) of other content.
    """
    wrong = []
    if verify == "hash":
        stage(root, manifest)
    for entry in manifest.files if verify != "none" else ():
        file = root / entry.path
        if not file.is_file():
            if obtainable(root, manifest):
                continue
            wrong.append(f"{file}: missing")
        elif (size := file.stat().st_size) != entry.bytes:
            wrong.append(f"{file}: {size} bytes, the manifest says {entry.bytes}")
        elif verify == "hash" and (digest := sha256_file(file)) != entry.sha256:
            wrong.append(f"{file}: SHA-256 {digest}, the manifest says {entry.sha256}")
    if wrong:
        raise VerificationFailed("\n".join([*wrong, f"{root}: delete this artifact and materialise it again."]))


def read_artifact(path: Path, verify: Verify = "size") -> Artifact:
    """Open the artifact at ``path`` after checking its files.

    Raises:
        InputError: there is no readable manifest.
        VerificationFailed: the files do not match it.
    """
    manifest = read_manifest(path / MANIFEST)
    verify_files(path, manifest, verify)
    return Artifact(path, manifest)


def find(path: Path, id: str) -> Artifact | None:
    """The finished artifact with this ``id`` at ``path``, or None when it is absent, other or damaged."""
    if not (path / MANIFEST).is_file():
        return None
    try:
        artifact = read_artifact(path)
    except (InputError, VerificationFailed):
        return None
    return artifact if artifact.id == id else None


def require_passed(artifact: Artifact) -> Artifact:
    """The artifact, unless a check that blocks failed.

    Raises:
        VerificationFailed: lists the failed checks and what they found.
    """
    if failed := artifact.manifest.failed_checks:
        reasons = "; ".join(f"{check.name}: {check.description}" for check in failed)
        raise VerificationFailed(f"{artifact.path}: {artifact.kind} failed a check that blocks what follows: {reasons}")
    return artifact
