"""A broken file stops the work on what it declares, and on nothing else."""

from collections.abc import Callable

import pytest

from pamp_pipelines.declarations.usable import usable_catalog
from pamp_pipelines.errors import DeclarationError, InputError
from pamp_pipelines.project import Project

from .conftest import write

Edit = Callable[[str, str, str], None]
CFG = "assets/training_configs/cfg.yaml"


def test_a_valid_project_is_all_usable(project: Project) -> None:
    catalog, problems = usable_catalog(project)
    assert (problems, catalog.broken, catalog.unnamed) == ([], {}, frozenset())
    assert catalog.names("model") == ["hf", "tiny"]


@pytest.mark.parametrize("text", ["hf: [\n", "hf: {pth: x}\n", "- a\n", ""])
def test_looking_up_a_broken_declaration_tells_its_problems_alone(project: Project, edit: Edit, text: str) -> None:
    (project.root / "assets/models/hf.yaml").write_text(text)
    edit("assets/corpora/text.yaml", "format: jsonl", "format: csv")
    catalog, problems = usable_catalog(project)
    assert len(problems) == 2
    assert catalog.model("tiny").eod == "<|endoftext|>"
    assert catalog.pairs() == [("tiny", "cfg")]
    with pytest.raises(DeclarationError) as error:
        catalog.model("hf")
    assert [problem.file.name for problem in error.value.problems] == ["hf.yaml"]
    assert (list(catalog.models), catalog.names("model")) == (["tiny"], ["hf", "tiny"])
    with pytest.raises(InputError, match="no model 'hg' is declared"):
        catalog.model("hg")


def test_a_config_with_a_broken_reference_is_left_out(project: Project, edit: Edit) -> None:
    edit(CFG, "text: 1", "txt: 1")
    catalog, _ = usable_catalog(project)
    assert catalog.training_configs == {}
    with pytest.raises(DeclarationError, match="'txt' is not a declared corpus"):
        catalog.training_config("cfg")


def test_what_refers_to_a_broken_file_stays(project: Project, edit: Edit) -> None:
    edit("assets/corpora/text.yaml", "format: jsonl", "format: csv")
    catalog, _ = usable_catalog(project)
    assert list(catalog.training_configs) == ["cfg"]
    with pytest.raises(DeclarationError, match=r"text\.yaml"):
        catalog.corpus("text")


def test_a_corpus_that_a_broken_file_would_make_tells_of_that_file(project: Project, edit: Edit) -> None:
    edit("assets/corpora/text.yaml", "format: jsonl", "format: csv\nshard_sets: {summary: meta.summary}")
    catalog, _ = usable_catalog(project)
    with pytest.raises(DeclarationError, match=r"text\.yaml"):
        catalog.corpus("text.summary")


def test_what_has_no_name_of_its_own_is_not_named(project: Project) -> None:
    write(
        project.root, {"assets/models/h-f.yaml": "hf: {path: data/hf}\n", "assets/models/h_f.yaml": "hf: {path: x}\n"}
    )
    write(project.root, {"assets/models/Big.yaml": "hf: {path: data/hf}\n", "assets/models/notes.txt": "words\n"})
    catalog, problems = usable_catalog(project)
    assert catalog.names("model") == ["h-f", "hf", "tiny"]
    assert [problem.file.name for problem in problems] == ["Big.yaml", "h_f.yaml", "notes.txt"]
    with pytest.raises(DeclarationError, match=r"differs from h-f\.yaml"):
        catalog.model("h_f")


def test_kinds_of_the_very_same_names(project: Project) -> None:
    """Dagster would load nothing: one of them has to go without a partition."""
    (project.root / "assets/models/hf.yaml").unlink()
    (project.root / "assets/corpora/text.yaml").rename(project.root / "assets/corpora/tiny.yaml")
    catalog, problems = usable_catalog(project)
    assert (catalog.names("corpus"), catalog.names("model")) == (["tiny"], [])
    assert any("declare the very same names (tiny)" in str(problem) for problem in problems)
