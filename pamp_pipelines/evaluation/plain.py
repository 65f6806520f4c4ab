"""Scoring a plain Hugging Face directory, with a project or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.job import EXPORT_KIND
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.row_files import is_file, is_held_out, row_file
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.sources import hub_sources
from pamp_pipelines.evaluation.spec import KIND, EvaluateJob, Subject, evaluation_spec, task_path, work_folder
from pamp_pipelines.evaluation.task_files import read_task
from pamp_pipelines.lake.hashing import sha256_file, sha256_json
from pamp_pipelines.lake.integrity import require_intact_input
from pamp_pipelines.lake.occupied import require_own_folder


def plain_subject(directory: Path, name: str | None = None, prefix: str | None = None) -> Subject:
    """A Hugging Face directory that is no artifact; its content is the hash over the files that decide its answers.

    Raises:
        InputError: there is no config.json or no weights.
        VerificationFailed: it is an export of this project, and damaged.
    """
    directory = directory.resolve()
    if not (directory / "config.json").is_file():
        raise InputError(f"{directory}: no config.json; give the directory of a Hugging Face model.")
    files = sorted(f for f in directory.iterdir() if f.suffix in {".safetensors", ".json", ".model", ".jinja"})
    if not any(f.suffix == ".safetensors" for f in files):
        raise InputError(f"{directory}: no .safetensors file; other weight formats can run code when read.")
    require_intact_input(directory, (EXPORT_KIND,))
    files = [f for f in files if f.name != "manifest.json"]
    content = sha256_json([(f.name, sha256_file(f)) for f in files])
    return Subject(directory=directory, content=content, prefix=prefix, model=name or directory.name)


def plain_job(
    directory: Path,
    suites: Sequence[str],
    output: Path,
    *,
    declared: Mapping[str, Evaluation] | None = None,
    data: Mapping[str, Path] | None = None,
    root: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    device: str = "auto",
    profile: ComputeProfile | None = None,
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
        prefix: token before the first token of a document; default: the tokenizer's bos, else eos.
        device: ``auto``, ``cpu``, ``cuda``.
        profile: threads and time limits of the worker.

    Raises:
        InputError: no model there, a suite or its rows are wrong, or ``output`` is or lies in the model's folder or an
            artifact, or holds something else where scores would be.
    """
    subject = plain_subject(directory, prefix=prefix)
    output = output.resolve()
    for suite in suites:
        require_own_folder(output / _name(suite, declared), KIND, [directory])
    specs = []
    unused = set(data or {})
    for suite in suites:
        base = (declared or {}).get(suite)
        name = _name(suite, declared)
        # A file named on the command line is meant from the current folder, one in a declaration from the project's.
        tasks = (str(Path(suite).resolve()) if Path(suite).is_file() else suite,)
        fields = (base.model_dump() if base else {"tasks": tasks}) | dict(settings or {})
        evaluation = Evaluation.model_validate(fields)
        rows = {
            task: row_file(source, lambda text: (root or Path()) / text, root and root / "data/packages")
            for task, source in evaluation.data.items()
            if is_file(source)
        }
        for task in evaluation.tasks:
            for key in sorted(_names(task, root, evaluation.allow_code) & set(data or {})):
                rows[task] = (data or {})[key]
                unused.discard(key)
        if missing := [task for task, file in evaluation.data.items() if is_held_out(file) and task not in rows]:
            raise InputError(
                f"evaluation {suite!r}: the held-out text of a plain directory is unknown; name a JSON-lines file for "
                f"{', '.join(missing)}, e.g. --data {missing[0]}=heldout.jsonl."
            )
        files = {task: [file.resolve()] for task, file in rows.items()}
        specs.append(evaluation_spec(name, evaluation, subject, output / name, files, root, hub_sources(evaluation)))
    if unused:
        raise InputError(f"data for {', '.join(sorted(unused))}: no task of {', '.join(suites)} has that name.")
    return EvaluateJob(
        subject=subject,
        evaluations=tuple(specs),
        work=work_folder(output, specs),
        device=device,
        profile=profile or ComputeProfile(),
        trusted=(root.resolve(),) if root else (),
    )


def _name(suite: str, declared: Mapping[str, Evaluation] | None) -> str:
    """Folder of a suite's scores."""
    return suite if suite in (declared or {}) else Path(suite).stem


def _names(task: str, root: Path | None, allow_code: bool) -> set[str]:
    """What a task can be called where its rows are given: as declared, or by the name in its file."""
    path = task_path(task, root)
    return {task} if path is None else {task, read_task(path, [root] if root else [], allow_code=allow_code).name}
