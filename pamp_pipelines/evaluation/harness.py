"""One evaluation through lm-eval's Python API, and its result as rows of the score table.

Imported by the worker alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lm_eval.utils
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from pamp_pipelines.corpus.grams import texts_in
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.bad_rows import explain
from pamp_pipelines.evaluation.build import build_tasks, leaves
from pamp_pipelines.evaluation.contamination import seen_in_training
from pamp_pipelines.evaluation.groups import complete_groups
from pamp_pipelines.evaluation.model import ScoredModel
from pamp_pipelines.evaluation.spec import EvaluateJob, EvaluationSpec
from pamp_pipelines.evaluation.stderr import perplexity, standard_error
from pamp_pipelines.evaluation.task_data import rows_sha256
from pamp_pipelines.evaluation.verdicts import (
    beats_unigram,
    extreme_scores,
    finite_scores,
    held_out_unseen,
    not_worse,
    prompts_fit,
    unigram_rows,
)
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.producer import git_state


@dataclass
class Outcome:
    """What one evaluation gave: the raw results, one JSON object per sample, rows of the table, counts, verdicts."""

    results: dict[str, Any]
    samples: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    stats: dict[str, Any]
    checks: list[CheckResult] = field(default_factory=list)


def sandbox_templates() -> None:
    """Render prompts in Jinja's sandbox: a template in a task file must not reach the interpreter."""
    environment = SandboxedEnvironment(
        loader=lm_eval.utils.env.loader, undefined=lm_eval.utils.env.undefined, keep_trailing_newline=True
    )
    environment.filters.update(lm_eval.utils.env.filters)
    lm_eval.utils.env = environment


def evaluate_loaded(job: EvaluateJob, spec: EvaluationSpec, model: ScoredModel) -> Outcome:
    """Run the tasks of ``spec`` on a loaded model.

    Raises:
        InputError: a task does not exist, its rows are wrong, or its data set is not on this machine.
    """
    sandbox_templates()
    start = time.monotonic()
    model.configure(spec.batch_size, spec.max_length)
    model.prompts = model.prompts_cut = 0
    try:
        tasks = build_tasks(job, spec)
        results = simple_evaluate(
            model=model,
            tasks=tasks,
            num_fewshot=spec.num_fewshot,
            limit=spec.limit,
            batch_size=spec.batch_size,
            bootstrap_iters=0,  # standard errors follow below, from the samples
            log_samples=True,
            apply_chat_template=spec.apply_chat_template,
            fewshot_as_multiturn=spec.apply_chat_template,
            gen_kwargs=dict(spec.generation) or None,
            task_manager=TaskManager(include_defaults=False),
            random_seed=spec.seed,
            numpy_random_seed=spec.seed,
            torch_random_seed=spec.seed,
            fewshot_random_seed=spec.seed,
        )
    except (ConnectionError, FileNotFoundError) as error:
        raise InputError(
            f"evaluation {spec.name!r}: a data set is not on this machine: {error}. Without a network, give the task "
            "its rows with `data`, or fetch the data set into the Hugging Face cache first."
        ) from error
    except Exception as error:
        explain(job, spec, error)
        raise
    seconds = time.monotonic() - start
    samples: dict[str, list[dict[str, Any]]] = results.pop("samples")
    rows = score_rows(job, spec, model, tasks, results, samples, seconds)
    rows += unigram_rows(job, spec, rows)
    stats = {
        "seconds": round(seconds, 3),
        "samples": sum(len(of_task) for of_task in samples.values()),
        "token_policy": model.policy.model_dump(),
        "max_length": model.max_length,
    }
    flat = [{"task": task, **sample} for task, of_task in samples.items() for sample in of_task]
    checks = [
        finite_scores(rows),
        *extreme_scores(rows, flat),
        *prompts_fit(model.prompts_cut, model.prompts),
        *beats_unigram(rows),
        *not_worse(spec, rows),
        *held_out_unseen(job, spec, rows),
    ]
    return Outcome(plain(results), flat, rows, stats, checks)


def score_rows(
    job: EvaluateJob,
    spec: EvaluationSpec,
    model: ScoredModel,
    tasks: Sequence[Any],
    results: dict[str, Any],
    samples: dict[str, list[dict[str, Any]]],
    seconds: float,
) -> list[dict[str, Any]]:
    """One row per task (and group) and metric."""
    subject, state = job.subject, git_state()
    commit = state.get("git_commit")
    template = getattr(model.tokenizer, "chat_template", None) if spec.apply_chat_template else None
    common = {
        "model": subject.model,
        "training_config": subject.training_config,
        "version": subject.version,
        "step": subject.step,
        "tokens_seen": subject.tokens_seen,
        "evaluation": spec.name,
        "limit": spec.limit,
        "chat_template_sha256": sha256_text(str(template)) if template else None,
        "model_content": subject.content,
        "checkpoint_content": subject.checkpoint_content,
        "prefix_token": model.policy.prefix,
        "prefix_id": model.policy.prefix_id,
        "dtype": model.dtype_name,
        "device": model.device_name,
        "batch_size": model.batch_used,
        "seconds": seconds,
        "lm_eval": results.get("lm_eval_version"),
        "code_commit": commit and commit + ("+" if state.get("git_dirty") else ""),
    }
    objects = {task.task_name: task for task in leaves(tasks)}
    declared = {task.name: task for task in spec.tasks}
    rows = []
    for name, metrics in {**results["results"], **results.get("groups", {})}.items():
        of_task = samples.get(name, [])
        task, file = objects.get(name), declared.get(name)
        counts = results.get("n-samples", {}).get(name, {})
        about = {
            "task": name,
            "task_version": _version(results["versions"].get(name)),
            "n_available": counts.get("original"),
            "num_fewshot": results.get("n-shot", {}).get(name),
            "prompt_sha256": sha256_text("".join(s["prompt_hash"] for s in of_task)) if of_task else None,
            "task_sha256": file.yaml_sha256 if file else None,
            "data_sha256": file.data_sha256 if file and file.data_sha256 else _rows_hash(task),
            "split": _split(task),
            "contamination": contamination(job, model, of_task),
        }
        better = results.get("higher_is_better", {}).get(name, {})
        for key, value in metrics.items():
            metric, _, filter = key.partition(",")
            if not filter or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            values = [s[metric] for s in of_task if s["filter"] == filter and metric in s]
            error = standard_error(
                metric,
                float(value),
                values,
                aggregate=task.aggregation().get(metric) if task else None,
                iterations=spec.bootstrap_iterations,
                seed=spec.seed,
            )
            rows.append(
                {
                    **common,
                    **about,
                    "metric": metric if filter == "none" else f"{metric},{filter}",
                    "value": float(value),
                    "stderr": error,
                    "higher_is_better": better.get(metric),
                    "n": len(values) or counts.get("effective"),
                }
            )
        if of_task and task is not None and task.OUTPUT_TYPE == "loglikelihood_rolling":
            for sample in of_task:
                sample["token_perplexity"] = (_likelihood(sample), model.document_length(sample["target"]))
            value, error = perplexity([sample["token_perplexity"] for sample in of_task])
            row = {"metric": "token_perplexity", "value": value, "stderr": error, "higher_is_better": False}
            rows.append({**common, **about, **row, "n": len(of_task)})
    complete_groups(rows, tasks)
    return rows


def contamination(job: EvaluateJob, model: ScoredModel, samples: Sequence[dict[str, Any]]) -> float | None:
    """Part of the samples with 13 tokens in a row of the training text; None where that is unknown or too large."""
    if job.subject.baseline is None or not samples:
        return None
    docs = {s["doc_hash"]: s["doc"] for s in samples}
    texts = [model.document_tokens(" ".join(texts_in(doc))) for doc in docs.values()]
    seen = seen_in_training(texts, job.subject.baseline.train)
    return None if seen is None else sum(seen) / len(seen)


def _split(task: ConfigurableTask | None) -> str | None:
    return (task.config.test_split or task.config.validation_split) if task is not None else None


def _rows_hash(task: ConfigurableTask | None) -> str | None:
    return rows_sha256(task.eval_docs) if task is not None else None


def _likelihood(sample: dict[str, Any]) -> float:
    """Log-likelihood of a document in nats: what lm-eval hands to every rolling metric, without the weight."""
    return float(sample["filtered_resps"][0])


def plain(value: Any) -> Any:
    """JSON-able copy; functions of a task's config by name, NumPy numbers as Python's."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(type(value)))}"
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _version(value: Any) -> str | None:
    """The version that a task states; lm-eval fills in ``Yaml`` where there is none."""
    return None if value in (None, "Yaml") else str(value)
