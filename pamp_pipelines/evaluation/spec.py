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
from pamp_pipelines.declarations.row_files import HubSource
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.sources import folder_sha256
from pamp_pipelines.evaluation.stock import Stock, data_sets, find_stock
from pamp_pipelines.evaluation.task_files import read_task, shipped_tasks
from pamp_pipelines.lake.hashing import sha256_file, sha256_json
from pamp_pipelines.lake.manifest import ArtifactRef, artifact_id

KIND = "eval_scores"
STAGE_VERSION = 5
_NO_IDENTITY = {"worse_factor", "allow_code"}
"""Settings that change a verdict or what is refused, not a score."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskSpec(_Frozen):
    """One task.

    Attributes:
        name: task, group or tag name as it appears in the scores.
        yaml: task file; None for a group or tag of lm-eval.
        yaml_sha256: hash over the task file, its includes and the code that it calls.
        folders: for a group or tag, what lm-eval has to index.
        data: JSON-lines files with the rows, read in this order; empty when the task names its own data set.
        datasets: folder of data sets by their hub names, looked in before the hub's cache.
        hub: data set of the hub over the task's own: path, name, revision.
        data_sha256: hash of the file, over the hashes of several, or over the data sets in ``datasets``; None where
            the hub's cache is read, whose rows are hashed when they are.
    """

    name: str
    yaml: Path | None = None
    yaml_sha256: str | None = None
    folders: tuple[Path, ...] = ()
    datasets: Path | None = None
    hub: dict[str, str | None] | None = None
    data: tuple[Path, ...] = ()
    data_sha256: str | None = None


class Predecessor(_Frozen):
    """The checkpoint before, as scored by the same evaluation: its step and the rows of its table."""

    step: int
    rows: tuple[dict[str, Any], ...]


class EvaluationSpec(_Frozen):
    """One evaluation: tasks and how they are run; fields as in the declaration.

    ``predecessor`` is what the scores are held against. It is no part of the identity: it changes a verdict only.
    ``heldout`` are the prefixes of the shards whose held-out text is scored, and ``inputs`` those of them that the run
    does not lead to.
    """

    name: str
    tasks: tuple[TaskSpec, ...]
    num_fewshot: int | None
    limit: int | None
    batch_size: int | Literal["auto"]
    processes: int = 1
    backend: Literal["hf", "vllm", "local-completions"] = "hf"
    backend_arguments: dict[str, Any] = {}
    max_length: int | None
    generation: dict[str, Any]
    apply_chat_template: bool
    dtype: Literal["auto", "float32", "float16", "bfloat16"]
    bootstrap_iterations: int
    seed: int
    allow_code: bool = False
    worse_factor: float = 1.1
    predecessor: Predecessor | None = None
    heldout: tuple[Path, ...] = ()
    inputs: tuple[ArtifactRef, ...] = ()
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
        checkpoint_content: of the checkpoint that it was exported from; None for a plain directory.
        prefix: token (or its id) that stands before the first token of a document when its likelihood is computed;
            None for the tokenizer's bos, else eos. Training separates documents with the model's eod, so that is what
            a checkpoint has learnt to see there.
        tokens_seen: tokens that the checkpoint was trained on here; None when unknown.
        inputs: the artifact that the directory is, for lineage.
        baseline: None where the training text is unknown.
    """

    directory: Path
    content: str
    checkpoint_content: str | None = None
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

    @property
    def answers(self) -> Path:
        """File of answers of an evaluation that was stopped; beside ``work``, which is emptied at each start."""
        return self.work.with_name(self.work.name.replace(".work-", ".answers-"))


def task_spec(
    task: str,
    data: Sequence[Path],
    root: Path | None,
    datasets: Path | None = None,
    hub: HubSource | None = None,
    *,
    allow_code: bool = False,
) -> TaskSpec:
    """Find a task by name or path and hash what decides its result.

    Args:
        task: name of a task of this package, path of a task YAML, or name of a task, group or tag of lm-eval.
        data: files of its local rows; empty for a task that has its own data set.
        root: the project's root: where relative paths start, and the folder whose tasks may call code.
        datasets: folder of data sets by their hub names.
        hub: a data set of the hub in place of the task's own.
        allow_code: whether a task file from outside the project may call code.

    Raises:
        InputError: there is no such task, a file is absent or wrong, or a group is given rows.
    """
    for file in data:
        if not file.is_file():
            hint = " Run `make setup`." if "benchmarks" in file.parts else ""
            raise InputError(f"{file}: no such file; task {task!r} takes its rows from it.{hint}")
    path = task_path(task, root)
    if path is None:
        stock = find_stock(task)
        if stock is None:
            raise InputError(f"{task!r}: no task of this package ({', '.join(shipped_tasks())}), and lm-eval has none.")
        if stock.kind == "collection":
            return _collection(stock, bool(data or hub), datasets)
        path = stock.file
    read = read_task(path, trusted=[root] if root else [], allow_code=allow_code)
    own = read.config.get("dataset_path")
    if not data and not hub and not (own or read.config.get("custom_dataset")):
        raise InputError(f"{path}: task {read.name!r} has no `dataset_path`, so it needs local rows: give it `data`.")
    hashes = [sha256_file(file) for file in data]
    if not data and not hub and datasets:
        hashes = _hashes(datasets, [own] if isinstance(own, str) else [])
    return TaskSpec(
        name=read.name,
        yaml=path.resolve(),
        yaml_sha256=read.sha256,
        data=tuple(data),
        datasets=datasets,
        hub=hub and {"path": hub.path, "name": hub.name, "revision": hub.revision},
        data_sha256=hashes[0] if len(hashes) == 1 else sha256_json(hashes) if hashes else None,
    )


def _collection(stock: Stock, given: bool, datasets: Path | None) -> TaskSpec:
    if given:
        raise InputError(f"{stock.name!r} stands for several tasks: name each with its `data`, or declare `datasets`.")
    inside = (file for folder in stock.folders for file in sorted(folder.rglob("*")))
    files = [file for file in inside if file.suffix in {".yaml", ".yml", ".py"}]
    hashes = _hashes(datasets, data_sets(stock)) if datasets else []
    return TaskSpec(
        name=stock.name,
        yaml_sha256=sha256_json([(file.name, sha256_file(file)) for file in files]),
        folders=stock.folders,
        datasets=datasets,
        data_sha256=sha256_json(hashes) if hashes else None,
    )


def _hashes(datasets: Path, names: Sequence[str]) -> list[str]:
    """Hashes of those data sets that the folder holds."""
    return [folder_sha256(folder) for name in names if (folder := datasets / name).is_dir()]


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
    hub: Mapping[str, HubSource] | None = None,
    inputs: Sequence[ArtifactRef] = (),
) -> EvaluationSpec:
    """Resolve a declared evaluation of a model.

    Args:
        name: its name.
        declared: the declaration.
        subject: the model; its content and prefix token are part of the identity.
        output: where the scores go.
        data: files of local rows by task as declared, absolute.
        root: see ``task_spec``.
        hub: data sets of the hub by task as declared.
        inputs: artifacts that rows are taken from, besides the model's.

    Raises:
        InputError: see ``task_spec``; or the declared folder of data sets does not exist.
    """
    datasets = (root or Path()) / declared.datasets if declared.datasets else None
    if datasets is not None and not datasets.is_dir():
        raise InputError(
            f"{datasets}: no such folder of data sets, but evaluation {name!r} declares it; "
            "`python -m pamp_pipelines.demo.prepare --benchmarks` makes the one of this project."
        )
    datasets = datasets and datasets.resolve()
    tasks = tuple(
        task_spec(task, data.get(task, ()), root, datasets, (hub or {}).get(task), allow_code=declared.allow_code)
        for task in declared.tasks
    )
    settings = declared.model_dump(exclude={"description", "owners", "tasks", "data", "datasets"})
    parameters = {
        **{key: value for key, value in settings.items() if key not in _NO_IDENTITY},
        "name": name,
        "tasks": [task.model_dump(exclude={"yaml", "data", "folders", "datasets"}) for task in tasks],
        "prefix": subject.prefix,
        "content": subject.content,
        "lm_eval": importlib.metadata.version("lm-eval"),
    }
    id = artifact_id(KIND, STAGE_VERSION, [ref.id for ref in (*subject.inputs, *inputs)], parameters)
    return EvaluationSpec(name=name, tasks=tasks, inputs=tuple(inputs), id=id, output=output, **settings)


def work_folder(parent: Path, specs: Sequence[EvaluationSpec]) -> Path:
    """Scratch folder of a job: hidden from readers of the lake, and another for another set of evaluations."""
    return parent / f".work-{sha256_json(sorted(spec.id for spec in specs))[:12]}"
