"""A byte that changed in a finished artifact is noticed by the command that would remake or read it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pamp_pipelines import cli
from pamp_pipelines.lake import integrity
from pamp_pipelines.project import Project

REPOSITORY = Path(__file__).parent.parent.parent
TOKENIZER = REPOSITORY / "data/tokenizers/shakespeare-bpe-2k"


@pytest.fixture(autouse=True)
def _plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAMP_PROJECT", "PAMP_LAKE", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def pamp(*args: object) -> Result:
    return CliRunner().invoke(cli.pamp, [*(str(arg) for arg in args), "--json"])


def answer(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])


def made(*args: object) -> str:
    result = pamp(*args)
    assert result.exit_code == 0, result.output
    return str(answer(result)["artifact"]["content"])


def flip(file: Path) -> bytes:
    """Changes a byte; gives what the file held."""
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    return whole


def test_plain_shards_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "To be or not to be"}\n')
    args = ("tokenize", "--input", "a.jsonl", "--tokenizer", TOKENIZER, "--output", "shards", "--workers", "1")
    content = made(*args)
    whole = flip(tmp_path / "shards/train.bin")
    again = pamp(*args)
    assert again.exit_code == 0, again.output
    assert "train.bin: its content is damaged" in again.stderr
    assert "so it is made again" in again.stderr
    assert (tmp_path / "shards/train.bin").read_bytes() == whole
    assert answer(again)["artifact"]["content"] == content


def test_shards_of_a_lake_are_made_again_and_whole_ones_not_read(
    own_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pamp_pipelines.corpus.job import corpus_job
    from pamp_pipelines.corpus.scan import scan_corpus
    from pamp_pipelines.declarations.catalog import load_catalog
    from pamp_pipelines.lake.store import Lake

    raw = scan_corpus(corpus_job(load_catalog(own_project), Lake(own_project.lake), "sonnets"))
    args = ("tokenize", "sonnets", "scratch", "--workers", "1", "--project", own_project.root)
    made(*args)
    (shards,) = own_project.lake.glob("shards/sonnets/*/train.bin")
    read: list[Path] = []
    hash_file = integrity.sha256_file
    monkeypatch.setattr(integrity, "sha256_file", lambda file: (read.append(file), hash_file(file))[1])
    made(*args)
    assert read == []
    whole = flip(shards)
    made(*args)
    assert (shards.read_bytes(), read) == (whole, [shards])
    made(*args)
    assert read == [shards]
    flip(raw.path / "sample.jsonl")  # an input, which is made by another stage
    refused = pamp(*args)
    assert answer(refused)["error"]["type"] == "VerificationFailed", refused.output
    assert "sample.jsonl: its content is damaged" in refused.stderr


def test_inspect_says_what_was_not_compared(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "To be or not to be"}\n')
    made("tokenize", "--input", "a.jsonl", "--tokenizer", TOKENIZER, "--output", "shards", "--workers", "1")
    assert answer(pamp("inspect", "shards"))["bytes_compared"] is False
    assert answer(pamp("inspect", "shards", "--verify"))["bytes_compared"] is True
    shown = CliRunner().invoke(cli.pamp, ["inspect", "shards"]).stdout
    assert "bytes were not compared" in shown


@pytest.mark.slow
def test_conversions_refuse_what_is_damaged_and_make_it_again(tiny_project: Project, tmp_path: Path) -> None:
    source = tiny_project.data / "models/imported"
    content = made("import-hf", source, "meg")
    weights = max((tmp_path / "meg").rglob("*.distcp"), key=lambda file: file.stat().st_size)
    flip(weights)
    for checkpoint in ("meg", "meg/checkpoint", weights.parent):
        refused = pamp("export-hf", checkpoint, "out")
        assert answer(refused)["error"]["type"] == "VerificationFailed", refused.output
        assert weights.name in refused.stderr
        assert not (tmp_path / "out").exists()
    assert made("import-hf", source, "meg") == content
    made("export-hf", "meg", "out")
    whole = flip(tmp_path / "out/model.safetensors")
    refused = pamp("import-hf", "out", "other")
    assert answer(refused)["error"]["type"] == "VerificationFailed", refused.output
    refused = pamp("evaluate", "out", "--suite", "lambada_openai", "--output", "scores")
    assert answer(refused)["error"]["type"] == "VerificationFailed", refused.output
    made("export-hf", "meg", "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == whole
