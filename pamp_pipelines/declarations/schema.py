"""JSON schemas of the declarations, for completion and checking in editors."""

import json
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.catalog import KINDS
from pamp_pipelines.errors import InputError

SCHEMAS = Path("docs/schemas")
"""Folder in a project that the modelines of `pamp new` point to."""


def schema(kind: str) -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a kind of declaration; ``kind`` is a key of ``KINDS``.

    Raises:
        InputError: no such kind.
    """
    if kind not in KINDS:
        raise InputError(f"no kind of declaration {kind!r}; there are {', '.join(KINDS)}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **KINDS[kind].model_json_schema()}


def schema_text(kind: str) -> str:
    """The schema as it is committed under ``docs/schemas``."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Write ``<kind>.json`` for every kind; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in KINDS:
        file = folder / f"{kind}.json"
        file.write_text(schema_text(kind), encoding="utf-8")
        files.append(file)
    return files
