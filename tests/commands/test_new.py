"""What `pamp new` writes is valid once it is filled in, and until then `pamp check` says so."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.commands.new import KINDS
from pamp_pipelines.declarations.catalog import KINDS as DECLARATIONS
from pamp_pipelines.declarations.catalog import folder_of
from pamp_pipelines.declarations.schema import schema
from pamp_pipelines.declarations.validate import validated
from pamp_pipelines.declarations.yaml_loader import read_yaml
from pamp_pipelines.errors import DeclarationError
from pamp_pipelines.project import Project


@pytest.fixture
def empty(tmp_path: Path) -> Project:
    (tmp_path / "workspace.yaml").touch()
    (tmp_path / "assets").mkdir()
    return Project(tmp_path)


def run(project: Project, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(pamp, ["new", *arguments, "--project", str(project.root)])
    return result.exit_code, result.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_filled_in_template_is_valid(empty: Project, kind: str) -> None:
    assert run(empty, kind, "mine")[0] == 0
    file = folder_of(empty, kind) / "mine.yaml"
    text = file.read_text()
    assert "CHANGE" in text
    file.write_text(text.replace("CHANGE", "change"))
    validated(read_yaml(file), DECLARATIONS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_commented_out_are_fields_too(empty: Project, kind: str) -> None:
    run(empty, kind, "mine")
    text = (folder_of(empty, kind) / "mine.yaml").read_text()
    commented = re.findall(r"^# ([a-z_]+):", text, re.MULTILINE)
    assert commented
    assert set(commented) <= set(DECLARATIONS[kind].model_fields)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_line_leads_to_the_schema(empty: Project, kind: str) -> None:
    """In any project: this repository's own schemas are not beside it."""
    run(empty, kind, "mine")
    file = folder_of(empty, kind) / "mine.yaml"
    target = file.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert target == f"../../docs/schemas/{kind}.json"
    assert json.loads((file.parent / target).read_text()) == schema(kind)


def test_a_schema_that_is_there_is_left_alone(empty: Project) -> None:
    there = empty.root / "docs/schemas/model.json"
    there.parent.mkdir(parents=True)
    there.write_text("{}")
    assert run(empty, "model", "mine")[0] == 0
    assert there.read_text() == "{}"


def test_what_is_not_filled_in_is_refused(empty: Project) -> None:
    run(empty, "training_config", "mine")
    file = folder_of(empty, "training_config") / "mine.yaml"
    with pytest.raises(DeclarationError, match="corpora"):
        validated(read_yaml(file), DECLARATIONS["training_config"])


@pytest.mark.parametrize("name", ["Mine", "a,b", "a|b", "../x", "a..b", "a.", "x" * 101])
def test_names_that_cannot_be_keys_are_refused(empty: Project, name: str) -> None:
    status, output = run(empty, "model", name)
    assert status == 1
    assert "partition key" in output
    assert not list(empty.assets.rglob("*.yaml"))


@pytest.mark.parametrize("twin", ["my-model.s", "my_model.s", "my.model-s", "my_model_s"])
def test_an_existing_declaration_is_never_overwritten(empty: Project, twin: str) -> None:
    run(empty, "model", "my-model.s")
    status, output = run(empty, "model", twin)
    assert status == 1
    assert "my-model.s.yaml: there is one of this name already (`-`, `_` and `.` count as the same)" in output


@pytest.mark.parametrize("there", ["mine.yml", "mine.yaml.bak", "mine.json", "mine", "my.ne.yaml"])
def test_what_check_would_confuse_it_with_is_named(empty: Project, there: str) -> None:
    folder = folder_of(empty, "model")
    folder.mkdir(parents=True)
    (folder / there).touch()
    name = "my-ne" if there == "my.ne.yaml" else "mine"
    status, output = run(empty, "model", name)
    expected = 0 if there == "mine.yaml.bak" else 1
    assert status == expected
    assert (folder / f"{name}.yaml").exists() is (expected == 0)
    if expected:
        assert f"{there}: there is one of this name already" in output.replace("\n", "")


def test_the_folder_of_tasks_is_none_of_that_name(empty: Project) -> None:
    (folder_of(empty, "evaluation") / "tasks").mkdir(parents=True)
    assert run(empty, "evaluation", "tasks")[0] == 0


@pytest.mark.parametrize(("first", "second"), [("training_config", "model"), ("model", "corpus"), ("corpus", "model")])
def test_names_that_dagster_could_not_tell_apart_are_refused(empty: Project, first: str, second: str) -> None:
    assert run(empty, first, "both")[0] == 0
    status, output = run(empty, second, "both")
    assert status == 1
    assert "declare the very same names (both)" in output
    assert not (folder_of(empty, second) / "both.yaml").exists()
    assert run(empty, second, "other")[0] == 0
    assert run(empty, second, "both")[0] == 0


def test_a_corpus_that_another_file_makes_is_refused(own_project: Project) -> None:
    file = folder_of(own_project, "corpus") / "poems.yaml"
    file.write_text("licence: x\nsources: [data/corpora/sonnets.jsonl]\nformat: jsonl\nshard_sets: {some: meta.some}\n")
    status, output = run(own_project, "corpus", "poems.some")
    assert status == 1
    assert "poems.yaml: declares 'poems.some' already" in output.replace("\n", "")
