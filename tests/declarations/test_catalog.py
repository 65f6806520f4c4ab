"""All files are read, all problems are reported at once with file, line and field, and names are looked up."""

import os
from collections.abc import Callable

import pytest

from pamp_pipelines.declarations.catalog import load_catalog, read_catalog
from pamp_pipelines.errors import InputError
from pamp_pipelines.project import Project

Problems = Callable[[], list[str]]
Edit = Callable[[str, str, str], None]
CFG = "assets/training_configs/cfg.yaml"


def test_a_valid_project_loads(project: Project) -> None:
    catalog = load_catalog(project)
    assert list(catalog.models) == ["hf", "tiny"]
    assert catalog.pairs() == [("tiny", "cfg")]
    assert catalog.training_config("cfg").optimizer.lr == 1e-3
    assert catalog.file_of("profile", "local") == project.root / "resources/local.yaml"


def test_a_config_without_models_is_for_every_model(project: Project, edit: Edit) -> None:
    edit(CFG, "models: [tiny]\n", "")
    assert load_catalog(project).pairs() == [("hf", "cfg"), ("tiny", "cfg")]


def test_blend_is_normalised(project: Project, edit: Edit) -> None:
    (project.root / "assets/corpora/more.yaml").write_text("licence: x\nsources: [data/text/a.jsonl]\nformat: jsonl\n")
    edit(CFG, "  text: 1\n", "  text: 3\n  more: 1.0\n")
    assert load_catalog(project).blend("cfg") == {"more": 0.25, "text": 0.75}


def test_lookups_suggest_and_pairs_are_required(project: Project) -> None:
    catalog = load_catalog(project)
    with pytest.raises(InputError, match=r"no model 'tny' is declared\. Did you mean 'tiny'\?"):
        catalog.model("tny")
    with pytest.raises(InputError, match=r"cfg\.yaml: models: 'hf' is not listed"):
        catalog.require_pair("hf", "cfg")
    catalog.require_pair("tiny", "cfg")


def test_all_problems_of_all_files_at_once(problems: Problems, edit: Edit) -> None:
    edit(CFG, "lr: 1e-3", "learning_rate: 1e-3")
    edit(CFG, "iterations: 10", "iterations: ten")
    edit(CFG, "  interval: 5\nvalidation", "  interva: 5\nvalidation")
    edit("assets/corpora/text.yaml", "format: jsonl", "format: csv")
    edit("assets/models/hf.yaml", "path: data/hf", "id: Qwen/Qwen3-0.6B")
    found = problems()
    assert [p.split(": ")[:2] for p in found] == [
        ["assets/corpora/text.yaml:3", "format"],
        ["assets/models/hf.yaml:2", "hf.id"],
        ["assets/training_configs/cfg.yaml:5", "iterations"],
        ["assets/training_configs/cfg.yaml:7", "optimizer.lr"],
        ["assets/training_configs/cfg.yaml:8", "optimizer.learning_rate"],
        ["assets/training_configs/cfg.yaml:10", "checkpoint.interva"],
    ]
    text = "\n".join(found)
    assert "'jsonl', 'parquet' or 'text', not \"csv\"" in text
    assert "Did you mean 'interval'?" in text
    assert "Known: lr, min_lr" in text or "Did you mean" in text
    assert "'ten' is text" in text


def test_all_problems_of_one_file_at_once(problems: Problems, project: Project) -> None:
    """Values that were refused as they stand, unknown fields, fields that are wrong by themselves, references."""
    (project.root / CFG).write_text(
        "models: [tny, no]\n"
        "corpora: {text: 1, txt: 1}\n"
        "max_epochs: {texx: 4}\n"
        "sequence_length: 32\n"
        "iterations: 010\n"
        "global_batch_size: 4\n"
        "optimizer: {lr: 1e-3}\n"
        "checkpont: {interval: 5}\n"
        "checkpoint: {intervall: 5}\n"
        "validation: {interval: 5, step_0: no}\n"
        "profile: eigth\n"
        "cron: '61 3 * * 1'\n"
        "megatron_args: {hiden-dropout: 0.1, init-method-std: 1:30, seed: 1, seed: 2}\n"
    )
    assert [p.removeprefix(f"{CFG}:").split(": ")[:2] for p in problems()] == [
        ["1", "models[0]"],
        ["1", "models[1]"],
        ["2", "corpora.txt"],
        ["3", "max_epochs.texx"],
        ["5", "iterations"],
        ["8", "checkpont"],
        ["9", "checkpoint.intervall"],
        ["10", "validation.step_0"],
        ["11", "profile"],
        ["12", "cron"],
        ["13", "megatron_args.hiden-dropout"],
        ["13", "megatron_args.seed"],
    ] or problems()


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            CFG,
            "iterations: 10",
            "iterations: 10\ntokens: 999\nseed: 0",
            ["seed: input", "give exactly one of `tokens`"],
        ),
        (CFG, "lr: 1e-3", "lr: 1e-3\n  min_lr: 1\n  beta1: 2", ["optimizer.beta1: input", "optimizer.min_lr: 1.0 is"]),
        (
            CFG,
            "lr: 1e-3",
            "lr: 1e-3\nhorizon: 5\nsequence_lenght: 1",
            ["horizon: 5 is less", "sequence_lenght: unknown"],
        ),
        (
            CFG,
            "lr: 1e-3",
            "lr: 1e-3\noffload: {activation_layers: 1}\nrecompute: full\nparallelism: {tensor: 0}",
            ["offload.activation_layers: cannot be combined with `recompute", "parallelism.tensor: input"],
        ),
        (
            CFG,
            "interval: 5",
            "interval: 5\n  interval_tokens: 640\ncron: x",
            ["checkpoint.interval_tokens: give", "cron: ", "validation.interval_tokens: give"],
        ),
        (
            "assets/corpora/text.yaml",
            "format: jsonl",
            "format: text\nshard_sets: {a: b}\nheld_out: {by: x}\nencoding: latin",
            ["encoding: input", "held_out.by: a text file", "shard_sets: a text file"],
        ),
        (
            "assets/corpora/text.yaml",
            "format: jsonl",
            "format: jsonl\nfilters: [{deduplicate: exact}, {}, {min_characters: 1, max_characters: no}]",
            [
                "filters: `deduplicate` must be",
                "filters[1]: a filter has exactly one",
                "filters[2].max_characters: `no`",
            ],
        ),
        (
            "assets/models/hf.yaml",
            "path: data/hf",
            "path: data/hf\n  revision: abc\nowners: [bob]",
            ["hf.revision: 'abc' is not a commit", "hf.revision: belongs to a hub", "owners[0]: "],
        ),
        (
            "resources/eight.yaml",
            "processes_per_node: 8",
            "launcher: kubernetes\nslurm: {partition: a}\nenv: {HF_TOKEN: x}",
            ["env.HF_TOKEN: looks like", "kubernetes.image: is missing", "slurm: has no effect"],
        ),
    ],
)
def test_what_compares_fields_is_told_beside_what_is_wrong_with_single_ones(
    problems: Problems, edit: Edit, file: str, old: str, new: str, expected: list[str]
) -> None:
    edit(file, old, new)
    found = sorted(problem.partition(": ")[2] for problem in problems())
    assert len(found) == len(expected), found
    assert all(text in problem for text, problem in zip(sorted(expected), found, strict=True)), found


def test_what_follows_from_a_refused_value_is_not_told(problems: Problems, project: Project, edit: Edit) -> None:
    edit(CFG, "iterations: 10", "iterations: 010")
    edit("assets/corpora/text.yaml", "format: jsonl", "format: jsonl\nfilters: [{min_characters: 010}]")
    edit("assets/models/hf.yaml", "path: data/hf", "path: no")
    assert [p.split(": ")[1] for p in problems()] == ["filters[0].min_characters", "hf.path", "iterations"]


def test_corpora_that_a_broken_file_would_make_count_as_declared(problems: Problems, edit: Edit) -> None:
    edit("assets/corpora/text.yaml", "format: jsonl", "format: jsnl\nshard_sets: {code: code}")
    edit(CFG, "text: 1", "text.code: 1")
    assert [p.split(": ")[:2] for p in problems()] == [["assets/corpora/text.yaml:3", "format"]]


def test_all_problems_of_a_profile_at_once(problems: Problems, project: Project) -> None:
    (project.root / "resources/local.yaml").write_text(
        "proceses_per_node: 1\nenv: {A-B: x, HF_TOKEN: xyz}\nslurm: {directives: {nodes: 2}, time: '٣:00'}\n"
    )
    assert [p.split(": ")[:2] for p in problems()] == [
        ["resources/local.yaml:1", "proceses_per_node"],
        ["resources/local.yaml:2", "env"],
        ["resources/local.yaml:2", "env.HF_TOKEN"],
        ["resources/local.yaml:3", "slurm.directives.nodes"],
        ["resources/local.yaml:3", "slurm.time"],
    ]


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (CFG, "text: 1", "txt: 1", "cfg.yaml:3: corpora.txt: 'txt' is not a declared corpus:…Did you mean 'text'?"),
        (CFG, "models: [tiny]", "models: [hf, tny]", "cfg.yaml:1: models[1]: 'tny' is not…Did you mean 'tiny'?"),
        (CFG, "iterations: 10", "iterations: 10\nprofile: eihgt", "cfg.yaml:6: profile:…Did you mean 'eight'?"),
        (CFG, "text: 1", "text: 0", "cfg.yaml:3: corpora.text: input should be greater than 0, not 0"),
        (CFG, "text: 1", "text: .inf", "cfg.yaml:3: corpora.text: input should be a finite number"),
        (CFG, "lr: 1e-3", "lr: true", "cfg.yaml:8: optimizer.lr: input should be a valid number, not true"),
        (CFG, "lr: 1e-3", 'lr: "1e-3"', "cfg.yaml:8: optimizer.lr: must be a number, but '1e-3' is text"),
        (CFG, "lr: 1e-3", "lr: 1e-3\n  min_lr: 1", "cfg.yaml:9: optimizer.min_lr: 1.0 is above `optimizer.lr`"),
        (CFG, "iterations: 10", "tokens: 127", "cfg.yaml:5: tokens: 127 is less than one global batch of 128 tokens"),
        (CFG, "iterations: 10", "seed: 3", "cfg.yaml:1: give exactly one of `tokens` and `iterations`"),
        (CFG, "iterations: 10", "iterations: 10\nowners: [bob]", "cfg.yaml:6: owners[0]: 'bob' is not an owner"),
        (CFG, "models: [tiny]", "models: [Tiny]", "cfg.yaml:1: models[0]: 'Tiny' is not a name"),
        (
            "assets/corpora/text.yaml",
            "CC0-1.0",
            "1.0",
            "text.yaml:1: licence: must be text, but 1.0 is a float: quote it",
        ),
        ("assets/models/hf.yaml", "hf:\n  path: data/hf", "eod: x", "hf.yaml:1: give exactly one of `hf` and"),
        ("resources/local.yaml", "processes_per_node: 1", "env: {HF_TOKEN: x}", "local.yaml:1: env.HF_TOKEN: …secret"),
        ("assets/models/hf.yaml", "hf:\n  path: data/hf\n", "- 1\n", "hf.yaml:1: is a list, not a mapping"),
        ("assets/models/hf.yaml", "hf:\n  path: data/hf\n", "", "hf.yaml:1: is empty"),
    ],
)
def test_one_problem(problems: Problems, edit: Edit, file: str, old: str, new: str, expected: str) -> None:
    edit(file, old, new)
    found = problems()
    assert len(found) == 1, found
    assert all(part in found[0] for part in expected.split("…")), found


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("assets/models/Big.yaml", "Big.yaml: the name 'Big' is refused"),
        ("assets/models/a|b.yaml", "the name 'a|b' is refused"),
        ("assets/models/a,b.yaml", "the name 'a,b' is refused"),
        ("assets/models/_x.yaml", "the name '_x' is refused"),
        (f"assets/models/{'x' * 101}.yaml", "has 101 characters"),
        ("assets/models/x.yml", "x.yml: is not a declaration, which is a .yaml file: rename it to x.yaml"),
        ("assets/models/notes.txt", "notes.txt: is not a declaration, which is a .yaml file: move it elsewhere"),
        ("assets/models/sub/x.yaml", "assets/models/sub: is not a declaration but a folder: move it elsewhere"),
        ("assets/models/x.yaml/x.yaml", "x.yaml: is not a declaration but a folder: move it elsewhere"),
        ("assets/models/x.yml/x.yaml", "x.yml: is not a declaration but a folder: move it elsewhere"),
        ("assets/models/x\n.yaml", r"the name 'x\n' is refused"),
        ("assets/training_config/x.yaml", "is not a folder of declarations. Did you mean 'training_configs'?"),
        ("assets/corpora/te-xt.yaml", None),
    ],
)
def test_names_and_stray_files(problems: Problems, project: Project, file: str, expected: str | None) -> None:
    path = project.root / file
    path.parent.mkdir(exist_ok=True)
    source = "assets/corpora/text.yaml" if "corpora" in file else "assets/models/hf.yaml"
    path.write_text((project.root / source).read_text())
    found = problems()
    assert len(found) == (expected is not None), found
    assert expected is None or expected in found[0]


def test_what_is_no_file(problems: Problems, project: Project) -> None:
    models = project.root / "assets/models"
    (models / "gone.yaml").symlink_to("nowhere.yaml")
    (models / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(models / "pipe.yaml")
    (models / "linked.yaml").symlink_to("hf.yaml")
    assert problems() == [
        "assets/models/gone.yaml: is a link to nothing (nowhere.yaml): remove it, or point it at a file",
        "assets/models/loop.yaml: is a link that leads nowhere (Too many levels of symbolic links): "
        "remove it, or point it at a file",
        "assets/models/pipe.yaml: is not a declaration but neither a file nor a folder: move it elsewhere",
    ]


def test_names_that_differ_in_punctuation_only(problems: Problems, project: Project) -> None:
    text = (project.root / "assets/models/hf.yaml").read_text()
    for name in ("a-b", "a_b", "a.b"):
        (project.root / f"assets/models/{name}.yaml").write_text(text)
    found = problems()
    assert found == [
        "assets/models/a.b.yaml: differs from a-b.yaml in `-`, `_` and `.` only: rename one",
        "assets/models/a_b.yaml: differs from a-b.yaml in `-`, `_` and `.` only: rename one",
    ]


def test_hidden_files_and_task_folder_are_left_alone(problems: Problems, project: Project) -> None:
    (project.root / "assets/models/.hf.yaml.swp").write_text("x")
    (project.root / "assets/evaluations/tasks").mkdir()
    (project.root / "assets/evaluations/tasks/mine.yaml").write_text("task: mine\n")
    assert problems() == []


def test_a_broken_file_still_counts_as_declared(project: Project, edit: Edit) -> None:
    edit("assets/corpora/text.yaml", "jsonl", "csv")
    catalog, found = read_catalog(project)
    assert "text" not in catalog.corpora
    assert [p.file.name for p in found] == ["text.yaml"]
