"""Evaluation: from a loaded model to the first request, what the pipeline adds to lm-eval, a leaderboard of many.

    python benchmarks/evaluation.py start MODEL_DIR --datasets data/benchmarks/hub
    python benchmarks/evaluation.py overhead CHECKPOINT_KEY --bytes 40000
    python benchmarks/evaluation.py leaderboard --runs 4 --steps 50

`start` scores the first row of three of lm-eval's own tasks and reads the worker's events; beside it stands what
lm-eval's own index of tasks costs in the same environment. `overhead` exports a kept checkpoint of the project's lake
elsewhere, scores text with it, and lets lm-eval's command line do the same: log-likelihoods have to be equal bit for
bit, and the difference in time is what the pipeline adds. `leaderboard` fills a lake with synthetic scores of three
evaluations, builds the report and opens it in Chromium. All print JSON. `python -m pamp_pipelines.demo.prepare
--benchmarks` makes the data.
"""

import argparse
import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TASK, LENGTH, BATCH = "heldout_perplexity", 512, 4
TASKS = ("gsm8k_cot", "arc_easy", "minerva_math500")
INDEX = """
import time
from lm_eval.tasks import TaskManager
start = time.process_time()
TaskManager()
print(time.process_time() - start)
"""


def start(model: Path, datasets: Path) -> dict[str, Any]:
    """Seconds from `loaded` to the first request of the first task, and of the whole call."""
    from pamp_pipelines.declarations.evaluation import Evaluation
    from pamp_pipelines.evaluation.plain import plain_job
    from pamp_pipelines.evaluation.run import evaluate
    from pamp_pipelines.lake.events import Event

    events: list[Event] = []
    suite = Evaluation(tasks=TASKS, datasets=str(datasets.resolve()), limit=1, generation={"max_gen_toks": 1})
    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()
        job = plain_job(model, ["suite"], Path(folder) / "scores", declared={"suite": suite}, device="cpu")
        planned = time.time()
        evaluate(job, events.append)
        whole = time.time() - begun
    loaded = next(event.time for event in events if event.data.get("loaded"))
    first = next(event.time for event in events if event.data.get("done") == 0)
    index = subprocess.run([sys.executable, "-c", INDEX], capture_output=True, text=True, check=True)
    return {
        "tasks": TASKS,
        "seconds_to_plan": round(planned - begun, 2),
        "seconds_to_load_model": round(loaded - planned, 2),
        "seconds_from_loaded_to_first_request": round(first - loaded, 2),
        "seconds_in_all": round(whole, 2),
        "cpu_seconds_of_lm_evals_own_index": round(float(index.stdout.split()[-1]), 2),
    }


def overhead(key: str, size: int) -> dict[str, Any]:
    """Seconds (wall, and CPU of all processes) of export, scores, and lm-eval's command line on the same directory."""
    from pamp_pipelines.conversion.exporter import export_hf
    from pamp_pipelines.declarations.catalog import load_catalog
    from pamp_pipelines.declarations.evaluation import Evaluation
    from pamp_pipelines.evaluation.job import evaluate_job
    from pamp_pipelines.evaluation.run import evaluate
    from pamp_pipelines.lake.store import CheckpointKey, Lake
    from pamp_pipelines.project import Project
    from pamp_pipelines.training.resolve import export_job

    project = Project.discover(ROOT)
    checkpoint = CheckpointKey.parse(key)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = hamlet_rows(folder / "rows.jsonl", size)
        for part in ("runs", "shards", "checkpoints", "corpora"):
            (folder / "lake").mkdir(exist_ok=True)
            (folder / "lake" / part).symlink_to((project.lake / part).absolute())
        lake = Lake(folder / "lake")
        settings: dict[str, Any] = {"batch_size": BATCH, "max_length": LENGTH, "dtype": "float32"}
        text = Evaluation(tasks=(TASK,), data={TASK: str(rows)}, **settings)
        catalog = load_catalog(project)
        # One thread each: on a busy machine a second one mostly waits, and burns CPU time while it does.
        profiles = {
            name: profile.model_copy(update={"threads_per_process": 1}) for name, profile in catalog.profiles.items()
        }
        catalog = dataclasses.replace(catalog, evaluations={"text": text}, profiles=profiles)
        with Timer() as exporting:
            export = export_hf(export_job(catalog, lake, checkpoint))
        with Timer() as ours:
            [scores] = evaluate(evaluate_job(catalog, lake, checkpoint, ["text"]))
        prefix = scores.manifest.stats["token_policy"]["prefix_id"]
        with Timer() as theirs:
            expected = lm_eval_command_line(export.path, rows, prefix, folder / "lm_eval", "cpu")
        found = [json.loads(line)["resps"] for line in (scores.path / "samples.jsonl").open()]
        equal = [str(mine[0][0]) == str(their[0][0]) for mine, their in zip(found, expected, strict=True)]
        return {
            "checkpoint": key,
            "bytes": sum(len(json.loads(line)["text"].encode()) for line in rows.open()),
            "samples": len(found),
            "samples_with_the_same_log_likelihood_bit_for_bit": sum(equal),
            "export": exporting.seconds,
            "scores_from_export_to_published": ours.seconds,
            "of_that_lm_eval_inside_the_worker": scores.manifest.stats["seconds"],
            "lm_evals_command_line": theirs.seconds,
            "export_to_score_over_the_command_line": {
                kind: round(exporting.seconds[kind] + ours.seconds[kind] - theirs.seconds[kind], 2)
                for kind in ours.seconds
            },
        }


class Timer:
    """Wall time of a block, and CPU time of this process and of all that it waited for."""

    def __enter__(self) -> "Timer":
        self._start = time.time(), self._cpu()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._start
        self.seconds = {"wall": round(time.time() - wall, 2), "cpu": round(self._cpu() - cpu, 2)}

    @staticmethod
    def _cpu() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def hamlet_rows(file: Path, size: int) -> Path:
    """The first documents of Hamlet as JSON lines, until they have so many bytes."""
    taken, lines = 0, []
    with (ROOT / "data/corpora/shakespeare/hamlet.jsonl").open(encoding="utf-8") as source:
        for line in source:
            lines.append(json.dumps({"text": json.loads(line)["text"]}))
            taken += len(json.loads(line)["text"].encode())
            if taken >= size:
                break
    file.write_text("\n".join(lines) + "\n")
    return file


def lm_eval_command_line(directory: Path, rows: Path, prefix: int, folder: Path, device: str) -> list[Any]:
    """Responses per sample of `lm-eval run` on the shipped task."""
    import yaml

    from pamp_pipelines.evaluation.task_files import shipped_tasks

    task = yaml.safe_load(shipped_tasks()[TASK].read_text())
    task |= {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}}
    (folder / "tasks").mkdir(parents=True)
    (folder / "tasks/task.yaml").write_text(yaml.safe_dump(task))
    # Its cache of logits scores wrong positions in repetitive text (tests/evaluation/test_model.py), so it is off.
    model = f"pretrained={directory},dtype=float32,max_length={LENGTH},logits_cache=False,prefix_token_id={prefix}"
    arguments = ["run", "--model", "hf", "--model_args", model, "--include_path", str(folder / "tasks")]
    arguments += ["--tasks", TASK, "--batch_size", str(BATCH), "--device", device]
    subprocess.run(
        [sys.executable, "-m", "lm_eval", *arguments, "--output_path", str(folder), "--log_samples"],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(folder / "cache"),
            "TQDM_DISABLE": "1",
        },
        check=True,
        capture_output=True,
    )
    [samples] = folder.glob(f"*/samples_{TASK}_*.jsonl")
    return [json.loads(line)["resps"] for line in samples.open()]


def leaderboard(runs: int, steps: int) -> dict[str, Any]:
    """Seconds to build the report over runs x steps checkpoints with three evaluations of 200 samples each."""
    sys.path.insert(0, str(ROOT / "tests/evaluation"))
    from conftest import LakeBuilder  # type: ignore[import-not-found]

    from pamp_pipelines.evaluation.leaderboard import build_leaderboard, leaderboard_id
    from pamp_pipelines.lake.store import CheckpointKey, Lake

    with tempfile.TemporaryDirectory() as folder:
        builder = LakeBuilder(Lake(Path(folder)))
        for run in range(runs):
            for step in range(steps):
                key = CheckpointKey(f"model{run}", "config", 1, 100 * step)
                for evaluation in ("text", "sums", "math"):
                    values = _values(evaluation, step)
                    samples = _samples(evaluation, step, list(values))
                    builder.scores(key, evaluation, evaluation, values, samples=samples)
            losses = [{"iteration": i, "loss": 7 / i**0.3, "seconds_per_iteration": 0.25} for i in range(1, 5001)]
            builder.metrics(CheckpointKey(f"model{run}", "config", 1, 0), losses)
        begun, cpu = time.time(), time.process_time()
        leaderboard_id(builder.lake)
        checked = time.time() - begun
        artifact = build_leaderboard(builder.lake)
        return {
            "checkpoints": runs * steps,
            "scores": artifact.manifest.stats["rows"],
            "seconds_to_see_that_nothing_changed": round(checked, 2),
            "seconds_to_build": round(time.time() - begun - checked, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "bytes": {file.path: file.bytes for file in artifact.manifest.files},
            "in_chromium": in_chromium(artifact.path / "index.html"),
        }


def in_chromium(page: Path) -> dict[str, float]:
    """Seconds to open the report, to sort its table by the last column, and to filter it to one model."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page()
        steps = {
            "open": lambda: tab.goto(page.absolute().as_uri()),
            "sort": lambda: tab.locator("th[data-sort]").last.click(),
            "filter": lambda: tab.get_by_label("Filter by model or config").fill("model1"),
        }
        for name, step in steps.items():
            begun = time.time()
            step()
            tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            found[name] = round(time.time() - begun, 2)
        browser.close()
    return found


def _values(evaluation: str, step: int) -> dict[str, tuple[float, float]]:
    if evaluation != "text":
        return dict.fromkeys(("exact_match", "math_verify"), (min(1.0, step / 60), 0.05))
    return {f"{unit}_perplexity": (900 / (1 + step), 1.0) for unit in ("token", "word", "byte")} | {
        "bits_per_byte": (9 / (1 + step) ** 0.3, 0.01)
    }


def _samples(evaluation: str, step: int, metrics: list[str]) -> list[dict[str, Any]]:
    def value(number: int) -> Any:
        return [-90.0 / (1 + step) - number % 7, 10] if evaluation == "text" else float(number % 50 < step)

    return [
        {"task": evaluation, "filter": "none", "doc_hash": str(n), **dict.fromkeys(metrics, value(n))}
        for n in range(200)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("start")
    first.add_argument("model", type=Path)
    first.add_argument("--datasets", type=Path, default=ROOT / "data/benchmarks/hub")
    third = commands.add_parser("overhead")
    third.add_argument("checkpoint")
    third.add_argument("--bytes", type=int, default=40_000)
    second = commands.add_parser("leaderboard")
    second.add_argument("--runs", type=int, default=4)
    second.add_argument("--steps", type=int, default=50)
    asked = parser.parse_args()
    match asked.command:
        case "start":
            found = start(asked.model, asked.datasets)
        case "overhead":
            found = overhead(asked.checkpoint, asked.bytes)
        case _:
            found = leaderboard(asked.runs, asked.steps)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
