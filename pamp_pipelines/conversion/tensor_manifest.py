"""`tensors.json` of an import: the SHA-256 of every Hugging Face tensor, whatever the files that hold it.

Written from the source when an import is judged, beside `hf_template/` and `checkpoint/`. What comes later checks
against it without the source: `verify-checkpoint`, and an export of the same, untrained weights.

A hash is over the elements in row-major order, little-endian, in the type of the checkpoint: of a source of 8-bit
floats, over the dequantised ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_json
from pamp_pipelines.lake.manifest import CheckResult

MANIFEST = "tensor_manifest"
"""Name of the check."""

FILE = "tensors.json"
_FORMAT = "pamp.tensors/1"


class TensorDigest(BaseModel):
    """One tensor; dtype as safetensors spells it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str
    shape: tuple[int, ...]
    sha256: str


def write_tensor_manifest(file: Path, tensors: Mapping[str, TensorDigest]) -> None:
    """Writes the file, atomically."""
    listed = {name: tensors[name].model_dump(mode="json") for name in sorted(tensors)}
    write_json(file, {"format": _FORMAT, "tensors": listed})


def read_tensor_manifest(file: Path) -> dict[str, TensorDigest]:
    """What `write_tensor_manifest` wrote.

    Raises:
        InputError: it is damaged, or of another format.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise InputError(f"{file}: format is {content['format']!r}, expected {_FORMAT!r}; import the model again")
        return {str(name): TensorDigest.model_validate(entry) for name, entry in content["tensors"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise InputError(f"{file}: no manifest of tensors ({error}); import the model again") from error


def manifest_problems(recorded: Mapping[str, TensorDigest], found: Mapping[str, TensorDigest]) -> list[str]:
    """The recorded tensors that are not found as they were recorded, one sentence each."""
    problems = [f"{name} is missing" for name in sorted(recorded.keys() - found.keys())]
    for name in sorted(recorded.keys() & found.keys()):
        was, now = recorded[name], found[name]
        if (was.dtype, was.shape) != (now.dtype, now.shape):
            problems.append(f"{name} is {now.dtype} {list(now.shape)}, recorded was {was.dtype} {list(was.shape)}")
        elif was.sha256 != now.sha256:
            problems.append(f"{name} has SHA-256 {now.sha256[:12]}…, recorded was {was.sha256[:12]}…")
    return problems


_LISTED = 5


def manifest_verdict(file: Path, found: Mapping[str, TensorDigest]) -> CheckResult:
    """The check `tensor_manifest`: every recorded tensor has the recorded hash."""
    try:
        recorded = read_tensor_manifest(file)
        problems = manifest_problems(recorded, found)
    except InputError as error:
        recorded, problems = {}, [str(error)]
    more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    return CheckResult(
        name=MANIFEST,
        passed=not problems,
        description="; ".join(problems[:_LISTED]) + more
        or f"all {len(recorded)} tensors have the SHA-256 that {file.name} recorded",
        metadata={"tensors": len(recorded), "different": len(problems)},
    )
