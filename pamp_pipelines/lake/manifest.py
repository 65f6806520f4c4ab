"""The manifest of an artifact: what it is, what it was made of, and every file's hash."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.lake.hashing import sha256_json

MANIFEST = "manifest.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArtifactRef(_Frozen):
    """Points to an input: enough to find and to check it."""

    kind: str
    id: str
    content: str


class FileEntry(_Frozen):
    """``path`` is relative to the artifact's directory, with forward slashes."""

    path: str
    bytes: int
    sha256: str


class CheckResult(_Frozen):
    """A verdict on an artifact. ``ERROR`` blocks what comes after, ``WARN`` is shown."""

    name: str
    passed: bool
    severity: Literal["ERROR", "WARN"] = "ERROR"
    description: str = ""
    metadata: dict[str, Any] = {}


class Manifest(_Frozen):
    """Contents of ``manifest.json``.

    Attributes:
        kind: asset key of the producer (``raw_corpus``, ``tokenized_shards`` …).
        id: SHA-256 over kind, stage version, input ids and resolved parameters; known before the stage runs.
        content: SHA-256 over the files; Dagster's data version.
        created: UTC time, ISO 8601.
        inputs: what it was made of.
        declaration: the resolved declaration(s) it was made from.
        producer: package version, git commit, library versions, host kind.
        files: every file of the artifact but this manifest.
        stats: counts with the unit in the name (``documents``, ``tokens``, ``seconds`` …).
        checks: verdicts; readers refuse an artifact with a failed ERROR check unless told otherwise.
        location: where the payload lies when it is another artifact's (step 0 of an imported model).
    """

    kind: str
    schema_version: Literal[1] = 1
    id: str
    content: str
    created: str
    inputs: tuple[ArtifactRef, ...] = ()
    declaration: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    files: tuple[FileEntry, ...] = ()
    stats: dict[str, Any] = {}
    checks: tuple[CheckResult, ...] = ()
    location: str | None = None

    def names(self, path: str) -> bool:
        """Whether the artifact has such a file, here or in a store."""
        return any(entry.path == path for entry in self.files)

    @property
    def failed_checks(self) -> tuple[CheckResult, ...]:
        return tuple(c for c in self.checks if not c.passed and c.severity == "ERROR")


def artifact_id(kind: str, version: int, inputs: list[str], parameters: Any) -> str:
    """Identity of an artifact before it exists.

    Args:
        kind: asset key.
        version: the stage's format version, bumped by hand when its output for equal input changes.
        inputs: ids of the input artifacts, in a meaningful order.
        parameters: JSON-able resolved parameters that decide the content (no paths of this machine, no times).
    """
    return sha256_json({"kind": kind, "version": version, "inputs": inputs, "parameters": parameters})


def content_hash(files: list[FileEntry]) -> str:
    """One hash over names and hashes of all files, independent of their order."""
    return sha256_json(sorted((f.path, f.sha256) for f in files))
