"""Tasks as lm-eval's objects, from the files and rows that a job names. Imported by the worker alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from datasets import Dataset
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.sources import data_set_folder, split_files
from pamp_pipelines.evaluation.spec import EvaluateJob, EvaluationSpec, TaskSpec
from pamp_pipelines.evaluation.task_data import data_set, local_data_sets
from pamp_pipelines.evaluation.task_files import read_task, resolve


def build_tasks(job: EvaluateJob, spec: EvaluationSpec) -> list[Any]:
    """Task objects (or groups of lm-eval) in declared order.

    Raises:
        InputError: rows are wrong, or a task needs examples from a split that its data lacks.
    """
    built: list[Any] = []
    for task in spec.tasks:
        with local_data_sets(task.datasets):
            built += [build_task(job, task, spec)] if task.yaml else _collection(task)
    for leaf in leaves(built):
        _check_examples(leaf, spec)
    return built


def leaves(tasks: Iterable[Any]) -> Iterator[ConfigurableTask]:
    """The tasks themselves, those inside groups included."""
    for task in tasks:
        if isinstance(task, ConfigurableTask):
            yield task
        elif isinstance(task, Group):
            yield from leaves(task.get_all_tasks())


def _collection(task: TaskSpec) -> list[Any]:
    """A group or tag; its folders are indexed, and all of lm-eval where it refers to tasks elsewhere."""
    try:
        loaded = TaskManager(include_path=[str(folder) for folder in task.folders], include_defaults=False).load(
            [task.name]
        )
    except (KeyError, ValueError):
        loaded = TaskManager().load([task.name])
    groups = loaded.get("groups", {})
    return [groups[task.name]] if task.name in groups else list(loaded["tasks"].values())


def build_task(
    job: EvaluateJob, task: TaskSpec, spec: EvaluationSpec, rows: list[dict[str, Any]] | None = None
) -> ConfigurableTask:
    """A task of a file; ``rows`` in place of all those of its local data.

    Raises:
        InputError: rows are wrong, or it needs examples from a split that its data lacks.
    """
    assert task.yaml is not None
    config = resolve(read_task(task.yaml, trusted=job.trusted, allow_code=spec.allow_code).config)
    for key in ("tag", "group", "task_list"):  # these speak to lm-eval's index, not to a task
        config.pop(key, None)
    if task.data:
        split = config.get("test_split") or config.get("validation_split") or "test"
        docs = data_set(task.data) if rows is None else Dataset.from_list(rows)
        config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": None}
        # The metadata of a task is passed to custom_dataset as arguments.
        config["custom_dataset"] = lambda **_: {split: docs}
        config.setdefault("test_split", split)
        _keep_splits(config, {split}, spec.num_fewshot)
    elif task.hub:
        config |= {"dataset_path": task.hub["path"], "dataset_name": task.hub["name"]}
        config["dataset_kwargs"] = {"revision": task.hub["revision"]} if task.hub["revision"] else None
    elif task.datasets and config.get("dataset_path"):
        folder = data_set_folder(task.datasets, config["dataset_path"], config.get("dataset_name"))
        if folder:
            _keep_splits(config, set(split_files(folder)), spec.num_fewshot)
            config["dataset_kwargs"] = None
    return ConfigurableTask(config=config)


def _keep_splits(config: dict[str, Any], present: set[str], num_fewshot: int | None) -> None:
    """Forget splits that the data does not have; without a test split lm-eval scores the validation split.

    Where the split of the examples is one of those, lm-eval would take them from the rows that it scores.
    """
    sources = ("fewshot_split", "training_split", "validation_split")
    shots = config.get("num_fewshot") if num_fewshot is None else num_fewshot
    source = next((config[key] for key in sources if config.get(key)), None)
    if shots and source and source not in present and not (config.get("fewshot_config") or {}).get("samples"):
        raise _no_examples(config["task"], shots)
    for key in (*sources, "test_split"):
        if config.get(key) not in present:
            config[key] = None
    if not (config["test_split"] or config["validation_split"]):
        raise InputError(f"task {config['task']!r}: its data has no split to score, only {', '.join(sorted(present))}.")


def _check_examples(task: ConfigurableTask, spec: EvaluationSpec) -> None:
    shots = task.config.num_fewshot if spec.num_fewshot is None else spec.num_fewshot
    if shots and not len(list(task.fewshot_docs() or ())):
        raise _no_examples(task.config.task, shots)


def _no_examples(task: str, shots: int) -> InputError:
    return InputError(
        f"task {task!r}: {shots} examples are asked for, but its data lacks the split that they are taken from; "
        "declare `num_fewshot: 0`, or a task that brings its own examples."
    )
