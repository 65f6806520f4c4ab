"""``pamp check``: are the declarations right, and is this machine ready."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamp_pipelines.commands.command import Outcome, command, discover, problem_data
from pamp_pipelines.errors import InputError

if TYPE_CHECKING:
    from pamp_pipelines.declarations.catalog import Catalog
    from pamp_pipelines.declarations.report import Report


@command("check", short_help="Validate all declarations and report on this machine.")
def check(project: Path | None) -> Outcome:
    """Validate all declarations, cross-check them, and report on this machine.

    Every problem is shown at once as `file:line: field: message`. Nothing is downloaded, built or changed.
    """
    from pamp_pipelines.commands.environment import environment_facts, environment_warnings
    from pamp_pipelines.declarations.catalog import read_catalog
    from pamp_pipelines.declarations.cross_checks import cross_check

    found = discover(project)
    facts = environment_facts(found)
    notes = environment_warnings(found, facts)
    catalog, problems = read_catalog(found)
    report = cross_check(catalog, cuda=bool(facts["gpus"]))
    report.errors += problems
    _check_architectures(catalog, report)
    _check_tasks(catalog, report)
    errors, warnings = sorted(set(report.errors)), sorted(set(report.warnings))
    counts = {
        "corpora": len(catalog.corpora),
        "models": len(catalog.models),
        "training_configs": len(catalog.training_configs),
        "evaluations": len(catalog.evaluations),
        "profiles": len(catalog.profiles),
        "pairs": len(catalog.pairs()),
    }
    lines = [
        *(f"{key:<15}{_shown(value)}" for key, value in facts.items()),
        f"{'declared':<15}{', '.join(f'{count} {kind}' for kind, count in counts.items())}",
        *(f"warning: {warning}" for warning in (*notes, *warnings)),
        *(f"error: {error}" for error in errors),
        f"{len(errors)} errors, {len(warnings) + len(notes)} warnings",
    ]
    data = {
        "environment": facts,
        "declared": counts,
        "errors": [problem_data(problem) for problem in errors],
        "warnings": [problem_data(problem) for problem in warnings],
        "notes": notes,
    }
    return Outcome(data, lines, ok=not errors)


def _check_architectures(catalog: Catalog, report: Report) -> None:
    """Whether each model can be converted, and trained by Megatron's loop, by its config.json."""
    from pamp_pipelines.conversion.declared import architecture_problems
    from pamp_pipelines.declarations.report import Report
    from pamp_pipelines.declarations.source_checks import check_model

    for name in catalog.models:
        found = Report()
        config = check_model(catalog, name, found)
        # what is already reported would only be said again
        known = any(problem.field.startswith("from_scratch.config") for problem in found.errors)
        if config is not None and not known:
            report.errors += architecture_problems(catalog, name, config)


def _check_tasks(catalog: Catalog, report: Report) -> None:
    """Whether each task of an evaluation exists, in this package, in the project or in lm-eval."""
    from pamp_pipelines.declarations.suggest import did_you_mean
    from pamp_pipelines.evaluation.spec import task_path, task_spec
    from pamp_pipelines.evaluation.stock import find_stock
    from pamp_pipelines.evaluation.task_files import shipped_tasks
    from pamp_pipelines.evaluation.task_names import lm_eval_names

    known: set[str] = set()
    for name, evaluation in catalog.evaluations.items():
        for index, task in enumerate(evaluation.tasks):
            # Held-out rows exist only after tokenization: here any file stands for them.
            rows = [catalog.file_of("evaluation", name)] if task in evaluation.data else []
            try:
                task_spec(task, rows, catalog.project.root, allow_code=evaluation.allow_code)
            except InputError as error:
                message = str(error)
                if task_path(task, catalog.project.root) is None and find_stock(task) is None:
                    known = known or lm_eval_names() | set(shipped_tasks())
                    message += did_you_mean(task, known)
                report.errors.append(catalog.problem("evaluation", name, ("tasks", index), message))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item or '(not installed)'}" for key, item in value.items())
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
