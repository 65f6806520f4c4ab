"""The committed schemas equal the code, describe every field, and every YAML file points at its own."""

import re
from pathlib import Path

import pytest

from pamp_pipelines.declarations.catalog import KINDS, folder_of
from pamp_pipelines.declarations.schema import schema, schema_text
from pamp_pipelines.project import Project

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", KINDS)
def test_committed_schema_equals_the_code(kind: str) -> None:
    committed = ROOT / "docs" / "schemas" / f"{kind}.json"
    assert committed.read_text(encoding="utf-8") == schema_text(kind), "run `pamp schema`"


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind: str) -> None:
    whole = schema(kind)
    definitions = whole.get("$defs", {})
    for name, part in {kind: whole, **definitions}.items():
        for field, entry in part.get("properties", {}).items():
            # pydantic leaves out a description that equals the one of the class it refers to
            referred = definitions.get(entry.get("$ref", "").rpartition("/")[2], {})
            assert entry.get("description") or referred.get("description"), f"{name}.{field} has no docstring"


@pytest.mark.parametrize("kind", KINDS)
def test_yaml_files_name_their_schema(kind: str) -> None:
    files = sorted(folder_of(Project(ROOT), kind).glob("*.yaml"))
    assert files
    for file in files:
        match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", file.read_text(encoding="utf-8"))
        assert match, f"{file} does not start with its schema"
        assert (file.parent / match[1]).resolve() == ROOT / "docs" / "schemas" / f"{kind}.json"
