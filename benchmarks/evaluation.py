"""Evaluation: from a loaded model to the first request, and the leaderboard over many checkpoints.

    python benchmarks/evaluation.py start MODEL_DIR --datasets data/benchmarks/hub
    python benchmarks/evaluation.py leaderboard --runs 4 --steps 50

`start` scores the first row of three of lm-eval's own tasks and reads the worker's events; beside it stands what
lm-eval's own index of tasks costs in the same environment. `leaderboard` fills a lake with synthetic scores of three
evaluations and builds the report. Both print JSON. `python -m pamp_pipelines.demo.prepare --benchmarks` makes the data.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
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
        }


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
    second = commands.add_parser("leaderboard")
    second.add_argument("--runs", type=int, default=4)
    second.add_argument("--steps", type=int, default=50)
    asked = parser.parse_args()
    found = start(asked.model, asked.datasets) if asked.command == "start" else leaderboard(asked.runs, asked.steps)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
