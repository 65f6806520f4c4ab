"""What a scoring worker is told, as plain data: a model directory, and what to score it on.

One job holds all evaluations that were asked for of one checkpoint, so that the model is loaded once.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.task_files import read_task, shipped_tasks
from pamp_pipelines.lake.hashing import sha256_file, sha256_json
from pamp_pipelines.lake.manifest import ArtifactRef, artifact_id

KIND = "eval_scores"
STAGE_VERSION = 2


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskSpec(_Frozen):
    """One task.

    Attributes:
        name: task, group or tag name as it appears in the scores.
        yaml: task file; None for a task that lm-eval ships, which is looked up by name.
        yaml_sha256: hash over the task file, its includes and the code that it calls.
        data: JSON-lines files with the rows, read in this order; empty when the task names its own data set.
        data_sha256: hash of that file, or over the hashes of several.
    """

    name: str
    yaml: Path | None = None
    yaml_sha256: str | None = None
    data: tuple[Path, ...] = ()
    data_sha256: str | None = None


class EvaluationSpec(_Frozen):
    """One evaluation: tasks and how they are run; fields as in the declaration."""

    name: str
    tasks: tuple[TaskSpec, ...]
    num_fewshot: int | None
    limit: int | None
    batch_size: int
    max_length: int | None
    generation: dict[str, Any]
    apply_chat_template: bool
    dtype: Literal["auto", "float32", "float16", "bfloat16"]
    bootstrap_iterations: int
    seed: int
    id: str
    output: Path


class Baseline(_Frozen):
    """Token shards of the checkpoint's run, for the unigram model that it should beat on the held-out text.

    Attributes:
        train: prefixes of the training shards.
        heldout: prefixes of the held-out shards; their text is what ``rows`` holds.
        rows: the held-out text as JSON lines.
        eod: token that ends a document; no model is scored on it.
        vocabulary: rows of the embedding.
    """

    train: tuple[Path, ...]
    heldout: tuple[Path, ...]
    rows: tuple[Path, ...]
    eod: int
    vocabulary: int


class Subject(_Frozen):
    """What is scored.

    Attributes:
        directory: Hugging Face directory.
        content: hash over its files.
        prefix: token (or its id) that stands before the first token of a document when its likelihood is computed;
            None for the tokenizer's bos, else eos. Training separates documents with the model's eod, so that is what
            a checkpoint has learnt to see there.
        tokens_seen: tokens that the checkpoint was trained on here; None when unknown.
        inputs: the artifact that the directory is, for lineage.
        baseline: None where the training text is unknown.
    """

    directory: Path
    content: str
    prefix: str | int | None = None
    model: str
    training_config: str | None = None
    version: int | None = None
    step: int | None = None
    tokens_seen: int | None = None
    inputs: tuple[ArtifactRef, ...] = ()
    baseline: Baseline | None = None


class EvaluateJob(_Frozen):
    """Everything a worker needs.

    Attributes:
        work: folder for events, logs and unpublished results; removed when all is published.
        device: ``auto`` takes a GPU if there is one.
        profile: threads, environment and time limits of the worker.
        trusted: folders whose task files may call Python code.
    """

    subject: Subject
    evaluations: tuple[EvaluationSpec, ...]
    work: Path
    device: str = "auto"
    profile: ComputeProfile = ComputeProfile()
    trusted: tuple[Path, ...] = ()


def task_spec(task: str, data: Sequence[Path], root: Path | None) -> TaskSpec:
    """Find a task by name or path and hash what decides its result.

    Args:
        task: name of a task of this package, path of a task YAML, or name of a task, group or tag of lm-eval.
        data: files of its local rows; empty for a task that has its own data set.
        root: the project's root: where relative paths start, and the folder whose tasks may call code.

    Raises:
        InputError: a file is absent or wrong, or a task of lm-eval is given local rows.
    """
    for file in data:
        if not file.is_file():
            hint = " Run `make setup`." if "benchmarks" in file.parts else ""
            raise InputError(f"{file}: no such file; task {task!r} takes its rows from it.{hint}")
    path = task_path(task, root)
    if path is None and data:
        raise InputError(
            f"task {task!r} is none of this package's ({', '.join(shipped_tasks())}) nor a YAML file, so it reads its "
            "own data set; `data` cannot replace that. Write a task YAML that includes it and give that the data."
        )
    if path is None:
        return TaskSpec(name=task)
    read = read_task(path, trusted=[root] if root else [])
    if not data and not (read.config.get("dataset_path") or read.config.get("custom_dataset")):
        raise InputError(f"{path}: task {read.name!r} has no `dataset_path`, so it needs local rows: give it `data`.")
    hashes = [sha256_file(file) for file in data]
    return TaskSpec(
        name=read.name,
        yaml=path.resolve(),
        yaml_sha256=read.sha256,
        data=tuple(data),
        data_sha256=hashes[0] if len(hashes) == 1 else sha256_json(hashes) if hashes else None,
    )


def task_path(task: str, root: Path | None) -> Path | None:
    """The YAML file of a task as declared; None for one that lm-eval ships."""
    if task.endswith((".yaml", ".yml")):
        return (root or Path()) / task
    return shipped_tasks().get(task)


def evaluation_spec(
    name: str,
    declared: Evaluation,
    subject: Subject,
    output: Path,
    data: Mapping[str, Sequence[Path]],
    root: Path | None,
) -> EvaluationSpec:
    """Resolve a declared evaluation of a model.

    Args:
        name: its name.
        declared: the declaration.
        subject: the model; its content and prefix token are part of the identity.
        output: where the scores go.
        data: files of local rows by task as declared, absolute.
        root: see ``task_spec``.
    """
    tasks = tuple(task_spec(task, data.get(task, ()), root) for task in declared.tasks)
    settings = declared.model_dump(exclude={"description", "owners", "tasks", "data"})
    parameters = {
        **settings,
        "name": name,
        "tasks": [task.model_dump(exclude={"yaml", "data"}) for task in tasks],
        "prefix": subject.prefix,
        "content": subject.content,
        "lm_eval": importlib.metadata.version("lm-eval"),
    }
    id = artifact_id(KIND, STAGE_VERSION, [ref.id for ref in subject.inputs], parameters)
    return EvaluationSpec(name=name, tasks=tasks, id=id, output=output, **settings)


def work_folder(parent: Path, specs: Sequence[EvaluationSpec]) -> Path:
    """Scratch folder of a job: hidden from readers of the lake, and another for another set of evaluations."""
    return parent / f".work-{sha256_json(sorted(spec.id for spec in specs))[:12]}"
