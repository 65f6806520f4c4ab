"""Scores against lm-eval's own command line, a process of its own: the same task, rows and model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pamp_pipelines.evaluation.plain import plain_job
from pamp_pipelines.evaluation.run import evaluate

LENGTH = 48
TEXTS = [
    "Shall I compare thee to a summer's day?",
    "To be, or not to be: that is the question. " * 12,  # several windows, and equal ones
    "O!",
    "Der Mensch denkt, 天地玄黄.",
]
CHOICES = [{"ctx": f"The {a} and the", "endings": [" rose", " king", " sea is deep"]} for a in ("moon", "fool", "war")]
PERPLEXITY = {
    "task": "texts",
    "output_type": "loglikelihood_rolling",
    "test_split": "test",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
}
CHOICE = {
    "task": "endings",
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "{{ctx}}",
    "doc_to_target": 0,
    "doc_to_choice": "{{endings}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


@pytest.fixture
def rows(tmp_path):
    files = {"texts": tmp_path / "texts.jsonl", "endings": tmp_path / "endings.jsonl"}
    for name, of_task in (("texts", [{"text": text} for text in TEXTS]), ("endings", CHOICES)):
        files[name].write_text("".join(json.dumps(row) + "\n" for row in of_task))
    return files


def command_line(directory: Path, tasks: list[dict], rows: dict[str, Path], folder: Path) -> tuple[dict, dict]:
    """Results and samples by task of ``lm-eval run``, which reads the same rows through ``datasets``."""
    include = folder / "tasks"
    include.mkdir()
    for task in tasks:
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows[task["task"]])}}}
        (include / f"{task['task']}.yaml").write_text(yaml.safe_dump(task | data))
    # Its cache of logits scores wrong positions in repetitive text (test_model.py has the proof), so it is off.
    model = f"pretrained={directory},dtype=float32,max_length={LENGTH},logits_cache=False"
    arguments = ["run", "--model", "hf", "--model_args", model, "--include_path", str(include), "--device", "cpu"]
    arguments += ["--tasks", ",".join(t["task"] for t in tasks), "--batch_size", "2", "--output_path", str(folder)]
    subprocess.run(
        [sys.executable, "-m", "lm_eval", *arguments, "--log_samples"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "TQDM_DISABLE": "1"},
        check=True,
        capture_output=True,
        timeout=500,
    )
    [results] = folder.glob("*/results_*.json")
    samples = {
        task["task"]: [json.loads(line) for line in next(folder.glob(f"*/samples_{task['task']}_*.jsonl")).open()]
        for task in tasks
    }
    return json.loads(results.read_text())["results"], samples


@pytest.mark.slow
def test_likelihoods_and_scores_are_those_of_lm_evals_command_line(tiny_project, rows, tmp_path):
    directory = tiny_project.data / "models/imported"
    expected, samples = command_line(directory, [PERPLEXITY, CHOICE], rows, tmp_path)
    files = []
    for task in (PERPLEXITY, CHOICE):
        files.append(tmp_path / f"{task['task']}.yaml")
        files[-1].write_text(yaml.safe_dump(task))
    settings = {"batch_size": 2, "max_length": LENGTH, "dtype": "float32"}
    job = plain_job(directory, [str(file) for file in files], tmp_path / "scores", data=rows, settings=settings)
    for artifact in evaluate(job):
        name = artifact.path.name
        ours = [json.loads(line) for line in (artifact.path / "samples.jsonl").open()]
        assert [_text(s["resps"]) for s in ours] == [_text(s["resps"]) for s in samples[name]], "bit for bit"
        results = json.loads((artifact.path / "results.json").read_text())["results"][name]
        metrics = [key for key in expected[name] if "," in key and "stderr" not in key]
        assert metrics
        assert {key: results[key] for key in metrics} == {key: expected[name][key] for key in metrics}


def _text(value):
    """As the command line writes what a model returned: every number and verdict as a string."""
    return [_text(item) for item in value] if isinstance(value, list) else str(value)
