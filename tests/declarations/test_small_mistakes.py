"""Small mistakes in a field, each named at its line before anything runs."""

from collections.abc import Callable

import pytest

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.declarations.cross_checks import cross_check
from pamp_pipelines.declarations.source_checks import tokenizer_problem
from pamp_pipelines.project import Project

Edit = Callable[[str, str, str], None]
Problems = Callable[[], list[str]]
CFG = "assets/training_configs/cfg.yaml"
TEXT = "assets/corpora/text.yaml"
M = "models: [tiny]"


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (CFG, M, M + "\nseed: 4294967296", "cfg.yaml:2: seed: input should be less than or equal to 2147483647"),
        (CFG, M, M + "\ndata_seed: 4294967296", "cfg.yaml:2: data_seed: input should be less than or equal to"),
        (CFG, M, "models: []", "cfg.yaml:1: models: is empty: list models, or leave"),
        ("assets/evaluations/ppl.yaml", "tasks:", "seed: -1\ntasks:", "ppl.yaml:1: seed: input should be greater"),
        (
            "assets/models/hf.yaml",
            "path: data/hf",
            "id: a/b\n  revision: main",
            "hf.yaml:3: hf.revision: 'main' is not a",
        ),
        (
            TEXT,
            "format: jsonl",
            "format: jsonl\ntext_field: ''",
            "text.yaml:4: text_field: string should have at least 1",
        ),
        ("resources/eight.yaml", "processes", "env: {A-B: x}\nprocesses", "eight.yaml:1: env: 'A-B' is no name of an"),
    ],
)
def test_refused(
    project: Project, edit: Edit, problems: Problems, file: str, old: str, new: str, expected: str
) -> None:
    edit(file, old, new)
    assert any(expected in problem for problem in problems()), problems()


def test_an_only_item_that_is_refused_is_the_only_problem(project: Project, edit: Edit, problems: Problems) -> None:
    edit(TEXT, "[data/text/*.jsonl]", "['http://user:secret@host/x.jsonl']")
    (problem,) = problems()
    assert "sources[0]: http://…@host/x.jsonl holds a user name or password" in problem
    assert "secret" not in problem


def test_an_empty_list_is_told_as_one(project: Project, edit: Edit, problems: Problems) -> None:
    edit(TEXT, "[data/text/*.jsonl]", "[]")
    (problem,) = problems()
    assert "sources: tuple should have at least 1 item" in problem


def test_sources_and_generation_arguments(project: Project, edit: Edit) -> None:
    edit(
        TEXT, "[data/text/*.jsonl]", "[data/text/*.jsonl, s4://bucket/x.jsonl, s3://bucket/x.jsonl, data/text/*.jsonl]"
    )
    edit("assets/evaluations/ppl.yaml", "tasks:", "generation: {max_gen_tok: 8, top_p: 0.9}\ntasks:")
    report = cross_check(load_catalog(project))
    (error,) = report.errors
    assert (error.field, error.message.split(" is ")[0]) == ("sources[1]", "'s4'")
    assert [w.field for w in report.warnings] == ["sources[3]", "generation.max_gen_tok"]
    assert report.warnings[1].message.endswith("Did you mean 'max_gen_toks'?")


def test_a_tokenizer_with_ids_beyond_the_embedding(project: Project) -> None:
    directory = project.root / "data/tok"
    assert tokenizer_problem(directory, "m", 3) is None
    assert "highest token id is 2, but model 'm' has vocab_size 2" in (tokenizer_problem(directory, "m", 2) or "")
    assert tokenizer_problem(project.root, "m", 2) is None
