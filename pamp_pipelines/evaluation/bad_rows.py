"""Which row of its data a task cannot use, once it has failed; lm-eval's own errors name neither file nor row.

Imported by the worker alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.evaluation.build import build_task, leaves
from pamp_pipelines.evaluation.spec import EvaluateJob, EvaluationSpec
from pamp_pipelines.evaluation.task_data import numbered_rows


def explain(job: EvaluateJob, spec: EvaluationSpec, error: Exception) -> None:
    """Return where the local rows are not to blame.

    Each row is made a task of its own, whose prompt and answer are formed: what fails so fails by this row alone.

    Args:
        error: what ended the evaluation.

    Raises:
        InputError: names the first row that fails, its file and its fields.
    """
    if isinstance(error, PampError):
        return
    for task in spec.tasks:
        rows = list(_rows(task.data))
        # As in a table, where a field that a row lacks is empty.
        empty = dict.fromkeys(name for *_, row in rows for name in row)
        for file, number, row in rows:
            try:
                for leaf in leaves([build_task(job, task, spec, [empty | row])]):
                    for doc in leaf.eval_docs:
                        leaf.doc_to_text(doc)
                        leaf.doc_to_target(doc)
            except Exception as found:
                if type(found) is not type(error):
                    continue
                fields = ", ".join(f"{name} ({type(value).__name__})" for name, value in row.items())
                raise InputError(
                    f"{file}:{number}: task {task.name!r} cannot use this row: {type(found).__name__}: {found}. It has "
                    f"the fields {fields}; correct it, or take the task that these rows are for."
                ) from error


def _rows(files: tuple[Path, ...]) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    for file in files:
        for number, row in numbered_rows(file):
            yield file, number, row
