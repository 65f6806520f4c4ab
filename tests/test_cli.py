"""Every command: help, one JSON object at the end of stdout, and an exit status that tells the truth."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from pamp_pipelines import cli
from pamp_pipelines.commands.leaderboard import table
from pamp_pipelines.commands.progress import describe, progress
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project

REPOSITORY = Path(__file__).parent.parent
TOKENIZER = REPOSITORY / "data/tokenizers/shakespeare-bpe-2k"
NAMES = {command.name for command in cli.COMMANDS}


@pytest.fixture(autouse=True)
def _plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAMP_PROJECT", "PAMP_LAKE", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def pamp(*args: object) -> Result:
    return CliRunner().invoke(cli.pamp, [str(arg) for arg in args])


def answer(result: Result | subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])


def test_the_commands_of_the_manual_exist() -> None:
    manual = "check materialize tokenize import-hf export-hf verify-checkpoint train evaluate compare report evict "
    manual += "demo new reindex inspect"
    assert {*manual.split(), "plan", "publish", "schema", "trace"} == NAMES


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_help(command: click.Command) -> None:
    result = pamp(command.name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "--project" in result.stdout
    assert command.short_help


def test_check_of_a_sound_project(tiny_project: Project) -> None:
    result = pamp("check", "--project", tiny_project.root, "--json")
    assert result.exit_code == 0, result.output
    report = answer(result)
    assert report["ok"]
    assert report["errors"] == []
    assert report["declared"]["pairs"] == 3
    assert report["environment"]["packages"]["dagster"]
    assert any("DAGSTER_HOME" in note for note in report["notes"])
    assert "0 errors" in pamp("check", "--project", tiny_project.root).stdout


def test_check_shows_every_problem_at_once(own_project: Project) -> None:
    """A broken file, a model of an unknown family, a task that does not exist and a pair that does not fit."""
    assets = own_project.assets
    replace(assets / "corpora/plays.yaml", "format: text", "fromat: text")
    replace(assets / "models/scratch.yaml", "LlamaForCausalLM", "MambaForCausalLM")
    replace(assets / "evaluations/sums.yaml", "[arithmetic_boxed]", "[arithmetic_boxed, nowhere.yaml]")
    replace(assets / "training_configs/both.yaml", "sequence_length: 64", "sequence_length: 512")
    result = pamp("check", "--project", own_project.root, "--json")
    assert result.exit_code == 1
    report = answer(result)
    assert not report["ok"]
    found = {(Path(error["file"]).name, error["field"], error["line"]) for error in report["errors"]}
    assert found >= {
        ("plays.yaml", "fromat", 3),
        ("plays.yaml", "format", 1),
        ("scratch.yaml", "from_scratch.config", 4),
        ("sums.yaml", "tasks[1]", 1),
        ("both.yaml", "sequence_length", 3),
    }
    assert (
        "both.yaml:3: sequence_length: 512 is more than the 256 positions"
        in pamp("check", "--project", own_project.root).stdout
    )


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_misspelt_task_of_lm_eval_is_found(own_project: Project) -> None:
    (own_project.assets / "evaluations/wiki.yaml").write_text("tasks: [wikitext, wikitxt]\n")
    report = answer(pamp("check", "--project", own_project.root, "--json"))
    assert not report["ok"]
    assert [(e["field"], "Did you mean 'wikitext'?" in e["message"]) for e in report["errors"]] == [("tasks[1]", True)]


def test_a_missing_project_fails(tmp_path: Path) -> None:
    result = pamp("check", "--project", tmp_path, "--json")
    assert result.exit_code == 1
    assert answer(result)["error"]["type"] == "InputError"
    assert "no project found" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("check",),
        ("demo",),
        ("evaluate", "m/c/v0001/0000001"),
        ("evict", "--budget", "1GB"),
        ("export-hf", "m/c/v0001/0000001"),
        ("import-hf", "model"),
        ("import-hf", "model", "--plan"),
        ("materialize", "raw_corpus", "--all"),
        ("new", "model", "mine"),
        ("plan", "model", "config"),
        ("publish",),
        ("reindex",),
        ("report",),
        ("schema",),
        ("tokenize", "corpus", "model"),
        ("trace", "0123"),
        ("train", "model", "config"),
        ("verify-checkpoint", "model"),
    ],
    ids=" ".join,
)
def test_outside_any_project_nothing_is_done_to_another_one(args: tuple[str, ...], tmp_path: Path) -> None:
    """This package is installed from a folder that is a project, which nobody named."""
    result = pamp(*args, "--json")
    assert result.exit_code == 1, result.output
    assert answer(result)["error"]["message"].startswith("no project found"), result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [("inspect", "x"), ("compare", "a", "b"), ("evaluate", ".", "--suite", "arithmetic")])
def test_a_project_that_is_named_and_is_none_is_not_passed_over(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAMP_PROJECT", str(tmp_path))
    assert answer(pamp(*args, "--json"))["error"]["message"].startswith("no project found: a project is a folder")


@pytest.mark.parametrize(
    "args",
    [
        ("materialize",),
        ("materialize", "raw_corpus", "--all", "--partition", "x"),
        ("tokenize", "--input", "a"),
        ("tokenize", "sonnets"),
        ("tokenize", "sonnets", "scratch", "--input", "a"),
        ("export-hf", "key", "--template", "x"),
        ("export-hf", "key", "--dtype", "float16"),
        ("evaluate", "."),
        ("evaluate", "key", "--limit", "3"),
        ("evaluate", ".", "--suite", "x", "--data", "rows"),
        ("train", "scratch"),
        ("check", "--bogus"),
        ("bogus",),
    ],
)
def test_a_wrong_command_line_is_status_2(args: tuple[str, ...]) -> None:
    assert pamp(*args).exit_code == 2


def test_a_wrong_command_line_ends_in_json_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["pamp", "check", "--bogus", "--json"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["message"].startswith("No such option")
    assert "Usage: pamp check" in captured.err


def test_missing_inputs_name_what_to_materialise(tiny_project: Project) -> None:
    result = pamp("train", "imported", "both", "--project", tiny_project.root, "--dry-run", "--json")
    assert result.exit_code == 1
    error = answer(result)["error"]
    assert (error["type"], error["asset"], error["partition"]) == ("MissingInput", "megatron_checkpoint", "imported")
    assert "run `pamp materialize megatron_checkpoint --partition 'imported'`" in result.stderr


def test_undeclared_pairs_and_wrong_settings_are_refused(tiny_project: Project) -> None:
    result = pamp("train", "imported", "sonnets-only", "--project", tiny_project.root, "--json")
    assert result.exit_code == 1
    assert "sonnets-only.yaml: models: 'imported' is not listed" in answer(result)["error"]["message"]
    result = pamp("train", "scratch", "both", "--set", "optimizer.lr=fast", "--project", tiny_project.root, "--json")
    assert result.exit_code == 1
    assert "optimizer.lr" in answer(result)["error"]["message"]


def test_declaration_errors_are_json(own_project: Project) -> None:
    replace(own_project.assets / "models/imported.yaml", "path:", "pth:")
    result = pamp("train", "imported", "both", "--project", own_project.root, "--json")
    assert result.exit_code == 1
    problems = answer(result)["error"]["problems"]
    assert ("hf.pth", 3) in {(problem["field"], problem["line"]) for problem in problems}


def test_a_broken_declaration_stops_what_needs_it_and_what_asks_for_all(own_project: Project) -> None:
    replace(own_project.assets / "models/imported.yaml", "path:", "pth:")
    at = ("--project", own_project.root, "--json")
    assert answer(pamp("train", "scratch", "sonnets-only", *at))["error"]["type"] == "MissingInput"
    assert answer(pamp("plan", "scratch", "both", *at))["ok"] is True
    everything = answer(pamp("materialize", "raw_corpus", "--all", *at))["error"]
    assert [Path(problem["file"]).name for problem in everything["problems"]] == ["imported.yaml"]


def test_schema(tmp_path: Path) -> None:
    result = pamp("schema", "corpus", "--json")
    assert result.exit_code == 0
    assert answer(result)["schema"]["title"] == "Corpus"
    assert pamp("schema", "--output", tmp_path / "s").exit_code == 0
    assert len(list((tmp_path / "s").glob("*.json"))) == 5
    assert pamp("schema", "korpus").exit_code == 1


def test_trace_of_nothing(tiny_project: Project) -> None:
    result = pamp("trace", "0123", "--project", tiny_project.root, "--json")
    assert result.exit_code == 1
    assert "no folder, checkpoint key or id" in answer(result)["error"]["message"]


def test_tokenize_plain_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "To be"}\n{"text": ""}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "or not"}\n')
    args = ("tokenize", "--input", "a.jsonl", "b.jsonl", "--tokenizer", TOKENIZER, "--output", "shards", "--json")
    result = pamp(*args)
    assert result.exit_code == 0, result.output
    made = answer(result)["artifact"]
    assert result.stdout.count("\n") == 1
    assert made["stats"]["documents_written"] == 2
    assert made["stats"]["dropped"] == {"empty": 1}
    assert (tmp_path / "shards/train.idx").is_file()
    assert answer(pamp(*args))["artifact"]["content"] == made["content"]


def test_inspect_decodes_and_verifies(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "To be"}\n{"text": "or not"}\n')
    pamp("tokenize", "--input", "a.jsonl", "--tokenizer", TOKENIZER, "--output", "shards", "--workers", "1", "--json")
    seen = pamp("inspect", "shards", "--documents", "1", "--verify", "--json")
    assert seen.exit_code == 0, seen.output
    found = answer(seen)
    assert [d["text"] for d in found["documents"]] == ["To be<|endoftext|>"]
    assert all(check["passed"] for check in found["checks"])
    with (tmp_path / "shards/train.idx").open("r+b") as stream:
        stream.seek(34)
        stream.write(b"\x09")
    assert pamp("inspect", "shards", "--json").exit_code == 1
    assert pamp("inspect", "nowhere", "--json").exit_code == 1


def test_tokenize_says_what_is_wrong_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"tex')
    result = pamp("tokenize", "--input", "a.jsonl", "--tokenizer", TOKENIZER, "--output", "shards", "--json")
    assert result.exit_code == 1
    assert "a.jsonl" in answer(result)["error"]["message"]
    assert not (tmp_path / "shards").exists()


def test_no_output_is_put_into_its_source_or_into_something_finished(tiny_project: Project, tmp_path: Path) -> None:
    """Before any work: each would be found by `manifest.json` or config.json to be what it is no more."""
    model, made = tmp_path / "model", tmp_path / "made"
    shutil.copytree(tiny_project.data / "models/imported", model)
    (tmp_path / "a.jsonl").write_text('{"text": "To be"}\n')
    tokenize = ("tokenize", "--input", "a.jsonl", "--tokenizer", TOKENIZER, "--workers", "1", "--output")
    assert pamp(*tokenize, made).exit_code == 0
    there = sorted(tmp_path.rglob("*"))
    commands: list[tuple[object, ...]] = [
        ("evaluate", model, "--suite", "hellaswag", "--output", model),
        ("evaluate", model, "--suite", "hellaswag", "--output", model / "scores"),
        ("evaluate", model, "--suite", "model", "--output", tmp_path),
        ("evaluate", model, "--suite", "hellaswag", "--output", made),
        ("import-hf", model, model / "megatron"),
        ("import-hf", model, model),
        ("import-hf", model, made),
        ("import-hf", model, made / "megatron"),
        ("report", "--project", tiny_project.root, "--output", made),
        ("report", "--project", tiny_project.root, "--output", made / "report"),
        ("schema", "--output", made),
        (*tokenize, made / "shards"),
        (*tokenize, model),
    ]
    for words in commands:
        message = answer(pamp(*words, "--json"))["error"]["message"]
        assert "choose another output" in message, (words, message)
    assert sorted(tmp_path.rglob("*")) == there


@pytest.mark.slow
def test_import_and_export_of_plain_directories(tiny_project: Project, tmp_path: Path) -> None:
    source = tiny_project.data / "models/imported"
    imported = pamp("import-hf", source, "meg", "--json")
    assert imported.exit_code == 0, imported.output
    assert answer(imported)["artifact"]["kind"] == "megatron_checkpoint"
    planned = answer(pamp("export-hf", "meg", "half", "--dtype", "float16", "--plan", "--workers", "1", "--json"))
    assert planned["dtypes"] == ["float16"]
    assert planned["workers"] == 1
    assert planned["peak_memory_bytes"] < 2**30
    assert not (tmp_path / "half").exists()
    half = pamp("export-hf", "meg", "half", "--dtype", "float16", "--workers", "1", "--memory", "0.5", "--json")
    assert half.exit_code == 0, half.output
    assert (tmp_path / "half/model.safetensors").stat().st_size < planned["export_bytes"] + 50_000
    exported = pamp("export-hf", "meg", "out", "--json")
    assert exported.exit_code == 0, exported.output
    assert (tmp_path / "out/model.safetensors").is_file()
    for inside in ("meg/out", "meg/checkpoint/release/out", "out/again"):
        result = pamp("export-hf", "meg", inside, "--json")
        assert "choose another output" in answer(result)["error"]["message"]
    assert pamp("import-hf", tmp_path / "nowhere", "x", "--json").exit_code == 1


@pytest.mark.slow
def test_materialize_one_partition(own_project: Project) -> None:
    def materialize(asset: str) -> subprocess.CompletedProcess[str]:
        # in a process of its own: a run of Dagster takes hold of file descriptors 1 and 2, which pytest holds already
        args = ["materialize", asset, "--partition", "sonnets", "--project", own_project.root, "--json"]
        return subprocess.run([sys.executable, "-m", "pamp_pipelines.cli", *args], capture_output=True, text=True)

    result = materialize("raw_corpus")
    assert result.returncode == 0, result.stderr
    (partition,) = answer(result)["partitions"]
    assert partition["partition"] == "sonnets"
    assert Path(partition["path"]).is_dir()
    assert partition["run_id"]
    wrong = materialize("raw_corpse")
    assert wrong.returncode == 1
    assert "Did you mean 'raw_corpus'?" in answer(wrong)["error"]["message"]


@pytest.mark.slow
def test_dry_run_shows_the_model_that_would_be_trained(own_project: Project) -> None:
    catalog, lake = load_catalog(own_project), Lake(own_project.lake)
    scan_corpus(corpus_job(catalog, lake, "sonnets"))
    at = ("--project", own_project.root, "--json")
    assert pamp("tokenize", "sonnets", "scratch", *at).exit_code == 0
    assert pamp("import-hf", "scratch", *at).exit_code == 0
    profile = "{launcher: slurm, nodes: 2, slurm: {partition: gpu, account: llm}}\n"
    (own_project.resources / "cluster.yaml").write_text(profile)
    changed = ("--set", "dropout.hidden=0.25", "--profile", "cluster")
    result = pamp("train", "scratch", "sonnets-only", *changed, "--dry-run", *at)
    assert result.exit_code == 0, result.output
    shown = answer(result)
    script = shown["submission"].splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --partition=gpu", "#SBATCH --account=llm"} <= set(script)
    assert script[0] == "#!/bin/bash"
    assert shown["constructed"]["hidden_dropout"] == 0.25
    assert shown["constructed"]["parameters"] == 84128
    assert [check["passed"] for check in shown["checks"]] == [True]
    assert not Path(shown["job"]["run_dir"]).exists()


def test_a_full_disk_and_a_fault_are_told_apart(tiny_project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/lake/x")

    monkeypatch.setattr("pamp_pipelines.declarations.catalog.read_catalog", full)
    result = pamp("check", "--project", tiny_project.root, "--json")
    assert result.exit_code == 1
    assert answer(result)["error"]["message"].startswith("/lake/x: No space left on device.")

    def fault(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("pamp_pipelines.declarations.catalog.read_catalog", fault)
    result = pamp("check", "--project", tiny_project.root, "--json")
    assert result.exit_code == 1
    assert "please report it" in answer(result)["error"]["message"]
    assert "Traceback" in result.stderr


def test_the_installed_script(tmp_path: Path) -> None:
    script = shutil.which("pamp", path=str(Path(sys.executable).parent))
    assert script
    version = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert "pamp" in version.stdout
    failed = subprocess.run(
        [script, "check", "--project", str(tmp_path), "--json"], capture_output=True, text=True, env=os.environ | {}
    )
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["ok"] is False


def test_progress_off_a_terminal_is_sparse(capsys: pytest.CaptureFixture) -> None:
    with progress() as on_event:
        on_event(Event(time=0, kind="started", data={"stage": "x"}))
        for step in range(100):
            on_event(Event(time=0, kind="progress", data={"done": step}))
        on_event(Event(time=0, kind="warning", data={"message": "low disk"}))
        on_event(Event(time=0, kind="finished", data={}))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split()[1] for line in lines] == ["started", "progress", "warning:", "progress", "finished"]


def test_events_are_described_with_the_telling_values_first() -> None:
    event = Event(
        time=0, kind="metric", data={"grad_norm": 0.123456, "loss": 2.0, "iteration": 7, "validation": {"a": 1}}
    )
    assert describe(event).split("  ", 1)[1].split() == ["iteration=7", "loss=2", "grad_norm=0.1235"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"gigabytes_per_second": 0.5, "seconds_left": 3.2},
            "progress   import [########............]  40%  1.00 of 2.50 GB  0.50 GB/s  0:03 left  file=x",
        ),
        ({"seconds_left": 4000.0}, "import [########............]  40%  1.00 of 2.50 GB  1:06:40 left  file=x"),
        ({}, "[########............]  40%  1.00 of 2.50 GB  file=x"),
        ({"done_bytes": 0, "total_bytes": 0}, "[####################] 100%  0.00 of 0.00 GB  file=x"),
    ],
)
def test_a_conversion_shows_a_bar_its_speed_and_the_time_left(data: dict[str, Any], words: str) -> None:
    moved = {"stage": "import", "done_bytes": 10**9, "total_bytes": 25 * 10**8, "file": "x", **data}
    assert describe(Event(time=0, kind="progress", data=moved)).endswith(words)


def test_the_leaderboard_shows_the_telling_metric_of_each_task() -> None:
    keys = {"model": "m", "training_config": "c", "step": "10", "tokens_seen": "2048"}
    scores = {"ppl/text/byte_perplexity": "2.5", "ppl/text/word_perplexity": "12.34567", "math/rows/exact_match": ""}
    lines = list(table([keys | scores], ["word_perplexity", "exact_match"]))
    assert [line.split() for line in lines] == [
        ["model", "training_config", "step", "tokens_seen", "text", "rows"],
        ["word_perplexity", "exact_match"],
        ["m", "c", "10", "2048", "12.35"],
    ]
    assert list(table([], [])) == []


@pytest.mark.parametrize(("size", "code"), [("auto", 1), ("4", 1), ("0", 2), ("many", 2)])
def test_a_batch_size_is_a_number_or_auto(tiny_project: Project, size: str, code: int) -> None:
    """1: it was understood, and the suite is what is wrong."""
    model = tiny_project.data / "models/imported"
    result = pamp("evaluate", model, "--suite", "no_such_task", "--batch-size", size)
    assert result.exit_code == code, result.output


def test_a_limit_stands_beside_the_score_that_it_cut() -> None:
    row = {"model": "m", "math/rows/exact_match": "0.5", "math/rows/cut": "4 of 500", "text/rows/bits_per_byte": "1.5"}
    *_, line = table([row], ["exact_match", "bits_per_byte"])
    assert line.split() == ["m", "0.5", "(4", "of", "500)", "1.5"]


def test_cost_and_overlap_stand_beside_a_score_and_are_explained() -> None:
    row = {"model": "m", "gpu_hours": "1.5", "cost": "", "math/rows/exact_match": "0.5"}
    *_, line, note = table([row | {"math/rows/contamination": "0.031"}], ["exact_match"])
    assert line.split() == ["m", "1.5", "0.5", "(3%", "share", "a", "13-gram)"]
    assert "any 13 tokens in a row" in note, "a share of documents, not of text"
