"""Which files of a folder are declarations, and which are refused."""

import re
import stat
from pathlib import Path

from pamp_pipelines.declarations.base import MAX_NAME, NAME_PATTERN, NAME_RULE
from pamp_pipelines.errors import Problem

TASKS = "tasks"
"""Folder in ``assets/evaluations`` for a project's own lm-eval task YAML files, which are no declarations."""


def list_declarations(folder: Path) -> tuple[dict[str, Path], list[Problem]]:
    """Name to file of each declaration in a folder, sorted, and a problem for whatever else lies there.

    Hidden files are left alone: editors and git put them there. A missing folder declares nothing.
    """
    files: dict[str, Path] = {}
    problems: list[Problem] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith(".") or (path.is_dir() and path.name == TASKS and folder.name == "evaluations"):
            continue
        if problem := _refusal(path):
            problems.append(Problem(path, 0, "", problem))
        else:
            files[path.stem] = path
    return files, problems + _look_alikes(files)


def _refusal(path: Path) -> str | None:
    if problem := _no_file(path):
        return problem
    if path.suffix != ".yaml":
        rename = f": rename it to {path.stem}.yaml" if path.suffix.lower() in (".yml", ".yaml", ".json") else ""
        return f"is not a declaration, which is a .yaml file{rename or ': move it elsewhere'}"
    if not re.fullmatch(NAME_PATTERN, path.stem):
        why = "since it becomes a partition key and a folder"
        return f"the name {path.stem!r} is refused: {NAME_RULE}, {why}. Rename the file"
    if len(path.stem) > MAX_NAME:
        return f"the name has {len(path.stem)} characters: shorten it to {MAX_NAME}"
    return None


def _no_file(path: Path) -> str | None:
    """What stands in a file's place, and what to do; None for a file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"is a link to nothing ({path.readlink()}): remove it, or point it at a file"
    except OSError as error:
        # e.g. a loop of links, or a link into a folder that may not be entered
        return f"is a link that leads nowhere ({error.strerror}): remove it, or point it at a file"
    if stat.S_ISREG(mode):
        return None
    kind = "a folder" if stat.S_ISDIR(mode) else "neither a file nor a folder"
    return f"is not a declaration but {kind}: move it elsewhere"


def identifier(name: str) -> str:
    """What Dagster makes of a name in its own names: where it is the same, people would mix the names up as well."""
    return re.sub(r"[-_.]", "_", name)


def _look_alikes(files: dict[str, Path]) -> list[Problem]:
    """Names that differ in ``-``, ``_`` and ``.`` only."""
    seen: dict[str, Path] = {}
    problems = []
    for name, path in files.items():
        other = seen.setdefault(identifier(name), path)
        if other != path:
            message = f"differs from {other.name} in `-`, `_` and `.` only: rename one"
            problems.append(Problem(path, 0, "", message))
    return problems
