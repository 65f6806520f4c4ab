"""An evaluation job as plain data: a model directory, and what to score it on.

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
STAGE_VERSION = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskSpec(_Frozen):
    """One task.

    Attributes:
        name: task, group or tag name as it appears in the scores.
        yaml: task file; None for a task that lm-eval ships, which is looked up by name.
        yaml_sha256: hash over the task file, its includes and the code that it calls.
        data: JSON-lines file with the rows; None when the task names its own data set.
        data_sha256: hash of that file.
    """

    name: str
    yaml: Path | None = None
    yaml_sha256: str | None = None
    data: Path | None = None
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


class Subject(_Frozen):
    """What is scored.

    Attributes:
        directory: Hugging Face directory.
        content: hash over its files.
        prefix_token: token that stands before the first token of a document when its likelihood is computed; None for
            the tokenizer's bos, else eos. Training separates documents with the model's eod, so that is what a
            checkpoint has learnt to see there.
        tokens_seen: tokens that the checkpoint was trained on here; None when unknown.
        inputs: the artifact that the directory is, for lineage.
    """

    directory: Path
    content: str
    prefix_token: str | None = None
    model: str
    training_config: str | None = None
    version: int | None = None
    step: int | None = None
    tokens_seen: int | None = None
    inputs: tuple[ArtifactRef, ...] = ()


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


def task_spec(task: str, data: Path | None, root: Path | None) -> TaskSpec:
    """Find a task by name or path and hash what decides its result.

    Args:
        task: name of a task of this package, path of a task YAML, or name of a task, group or tag of lm-eval.
        data: its local rows.
        root: the project's root: where relative paths start, and the folder whose tasks may call code.

    Raises:
        InputError: a file is absent or wrong, or a task of lm-eval is given local rows.
    """
    if data is not None and not data.is_file():
        hint = " Run `make setup`." if "benchmarks" in data.parts else ""
        raise InputError(f"{data}: no such file; task {task!r} takes its rows from it.{hint}")
    digest = sha256_file(data) if data else None
    if task.endswith((".yaml", ".yml")):
        path = Path(task) if root is None else root / task
    elif task in shipped_tasks():
        path = shipped_tasks()[task]
    elif data is not None:
        raise InputError(
            f"task {task!r} is none of this package's ({', '.join(shipped_tasks())}) nor a YAML file, so it reads its "
            "own data set; `data` cannot replace that. Write a task YAML that includes it and give that the data."
        )
    else:
        return TaskSpec(name=task)
    file = read_task(path, trusted=[root] if root else [])
    if data is None and not (file.config.get("dataset_path") or file.config.get("custom_dataset")):
        raise InputError(f"{path}: task {file.name!r} has no `dataset_path`, so it needs local rows: give it `data`.")
    return TaskSpec(name=file.name, yaml=path.resolve(), yaml_sha256=file.sha256, data=data, data_sha256=digest)


def evaluation_spec(
    name: str, declared: Evaluation, subject: Subject, output: Path, data: Mapping[str, Path], root: Path | None
) -> EvaluationSpec:
    """Resolve a declared evaluation of a model.

    Args:
        name: its name.
        declared: the declaration.
        subject: the model; its content and prefix token are part of the identity.
        output: where the scores go.
        data: local rows by task as declared (a JSON-lines file), absolute.
        root: see ``task_spec``.
    """
    tasks = tuple(task_spec(task, data.get(task), root) for task in declared.tasks)
    settings = declared.model_dump(exclude={"description", "owners", "tasks", "data"})
    parameters = {
        **settings,
        "name": name,
        "tasks": [task.model_dump(exclude={"yaml", "data"}) for task in tasks],
        "prefix_token": subject.prefix_token,
        "content": subject.content,
        "lm_eval": importlib.metadata.version("lm-eval"),
    }
    id = artifact_id(KIND, STAGE_VERSION, [ref.id for ref in subject.inputs], parameters)
    return EvaluationSpec(name=name, tasks=tasks, id=id, output=output, **settings)


def plain_subject(directory: Path, name: str | None = None, prefix_token: str | None = None) -> Subject:
    """A Hugging Face directory that is no artifact; its content is the hash over the files that decide its answers.

    Raises:
        InputError: there is no config.json or no weights.
    """
    directory = directory.resolve()
    if not (directory / "config.json").is_file():
        raise InputError(f"{directory}: no config.json; give the directory of a Hugging Face model.")
    files = sorted(f for f in directory.iterdir() if f.suffix in {".safetensors", ".json", ".model", ".jinja"})
    if not any(f.suffix == ".safetensors" for f in files):
        raise InputError(f"{directory}: no .safetensors file; other weight formats can run code when read.")
    files = [f for f in files if f.name != "manifest.json"]
    content = sha256_json([(f.name, sha256_file(f)) for f in files])
    return Subject(directory=directory, content=content, prefix_token=prefix_token, model=name or directory.name)


def plain_job(
    directory: Path,
    suites: Sequence[str],
    output: Path,
    *,
    declared: Mapping[str, Evaluation] | None = None,
    data: Mapping[str, Path] | None = None,
    root: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> EvaluateJob:
    """A job for ``pamp evaluate HF_DIR --suite …``.

    Args:
        directory: Hugging Face directory.
        suites: names of declared evaluations, task YAML files, or task names.
        output: folder that gets one folder of scores per suite.
        declared: the project's evaluations, if there is a project.
        data: rows by task, over those that the declaration names.
        root: the project's root, if there is one.
        settings: fields of an evaluation, over the declared ones (``limit``, ``batch_size`` …).
        device: ``auto``, ``cpu``, ``cuda``.
    """
    subject = plain_subject(directory)
    output = output.resolve()
    specs = []
    for suite in suites:
        base = (declared or {}).get(suite)
        name = suite if base else Path(suite).stem
        fields = (base.model_dump() if base else {"tasks": (suite,)}) | dict(settings or {})
        evaluation = Evaluation.model_validate(fields)
        rows = {task: (root or Path()) / file for task, file in evaluation.data.items() if file != "held_out"}
        rows |= data or {}
        if missing := [task for task, file in evaluation.data.items() if file == "held_out" and task not in rows]:
            raise InputError(
                f"evaluation {suite!r}: the held-out text of a plain directory is unknown; name a JSON-lines file for "
                f"{', '.join(missing)}, e.g. --data {missing[0]}=heldout.jsonl."
            )
        rows = {task: file.resolve() for task, file in rows.items()}
        specs.append(evaluation_spec(name, evaluation, subject, output / name, rows, root))
    work = output / ".work"
    return EvaluateJob(
        subject=subject,
        evaluations=tuple(specs),
        work=work,
        device=device,
        trusted=(root.resolve(),) if root else (),
    )
