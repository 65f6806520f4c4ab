"""Score a model: ``python -m pamp_pipelines.evaluation.worker JOB.json``, started by ``run.evaluate``.

The model is loaded once for all evaluations of the job. Each writes results.json (as lm-eval returned it),
samples.jsonl, scores.parquet and values.parquet into ``job.work/<evaluation>/``; the caller publishes them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import PampError
from pamp_pipelines.evaluation.spec import EvaluateJob, EvaluationSpec
from pamp_pipelines.lake.events import EventLog
from pamp_pipelines.launchers.disk import run_main

DONE = "done.json"
_SECONDS_BETWEEN_EVENTS = 1.0


class _Throttled:
    """Progress events, one a second at most, and always the last."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._last = 0.0
        self.evaluation = ""

    def __call__(self, kind: str, done: int, all: int) -> None:
        now = time.monotonic()
        if done in (0, all) or now - self._last >= _SECONDS_BETWEEN_EVENTS:
            self._last = now
            self._log.write("progress", evaluation=self.evaluation, requests=kind, done=done, all=all)


def main(path: Path) -> None:
    job = EvaluateJob.model_validate_json(path.read_bytes())
    log = EventLog(job.work / "events.jsonl")
    try:
        score_all(job, log)
    except PampError as error:
        log.write("failed", message=str(error))
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def score_all(job: EvaluateJob, log: EventLog) -> None:
    """Write the results of every evaluation of a job into a folder of its work folder.

    Raises:
        PampError: a model, a task or its data is wrong.
    """
    # Bars of lm-eval and datasets would fill the log, and progress is reported by events.
    os.environ |= {"TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
    start = time.monotonic()
    throttled = _Throttled(log)
    log.write("started", directory=str(job.subject.directory), evaluations=[spec.name for spec in job.evaluations])
    from pamp_pipelines.evaluation.backends import load_for
    from pamp_pipelines.evaluation.harness import evaluate_loaded

    loaded: Any = None
    how: tuple[Any, ...] = ()
    for spec in sorted(job.evaluations, key=lambda spec: (*map(str, loading(spec)), spec.name)):
        throttled.evaluation = spec.name
        if loaded is None or how != loading(spec):
            if loaded is not None:
                loaded.close()
            loaded = None  # free it first: two copies may not fit
            loaded, how = load_for(job, spec, throttled), loading(spec)
            seconds = time.monotonic() - start
            log.write("progress", loaded=True, seconds=round(seconds, 2), policy=loaded.model.policy.model_dump())
        _score(job, spec, loaded.model, log, evaluate_loaded)
    if loaded is not None:
        loaded.close()
    log.write("finished", seconds=round(time.monotonic() - start, 2))


def loading(spec: EvaluationSpec) -> tuple[Any, ...]:
    """What decides how a model is loaded; evaluations that agree on it share one."""
    how = (spec.backend, spec.backend_arguments, spec.dtype, spec.processes)
    # Transformers' model is fitted to an evaluation without loading it again; the others are not.
    return how if spec.backend == "hf" else (*how, spec.batch_size, spec.max_length, spec.seed)


def _score(
    job: EvaluateJob, spec: EvaluationSpec, model: Any, log: EventLog, evaluate_loaded: Callable[..., Any]
) -> None:
    import orjson

    from pamp_pipelines.evaluation.scores import RESULTS, SAMPLES, SCORES, write_scores
    from pamp_pipelines.evaluation.values import VALUES, contributions, write_values
    from pamp_pipelines.lake.atomic import write_bytes, write_json

    folder = job.work / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    outcome = evaluate_loaded(job, spec, model)
    write_json(folder / RESULTS, outcome.results)
    lines = (orjson.dumps(sample, option=orjson.OPT_SERIALIZE_NUMPY, default=str) for sample in outcome.samples)
    write_bytes(folder / SAMPLES, b"".join(line + b"\n" for line in lines))
    write_scores(folder / SCORES, outcome.rows)
    metrics: dict[str, list[str]] = {}
    for row in outcome.rows:
        metrics.setdefault(row["task"], []).append(row["metric"])
    write_values(folder / VALUES, contributions(outcome.samples, metrics))
    write_json(folder / DONE, {"stats": outcome.stats, "checks": [c.model_dump() for c in outcome.checks]})
    for row in outcome.rows:
        log.write("metric", **{key: row[key] for key in ("evaluation", "task", "metric", "value", "stderr", "n")})
    log.write("progress", evaluation=spec.name, published=False, seconds=outcome.stats["seconds"])


if __name__ == "__main__":
    run_main(main)
