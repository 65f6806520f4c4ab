"""Task YAML files: reading them, what they include, what code they call, and whether that code may run.

The format is lm-eval's (https://github.com/EleutherAI/lm-evaluation-harness/blob/main/docs/new_task_guide.md) with one
addition: an include that starts with ``lm_eval.tasks/`` names a file of the installed lm-eval. A ``!function`` runs
Python when the task is scored, so such a file, and the file of the code, have to lie in this package, in lm-eval or in
the project, unless the evaluation declares ``allow_code``. Reading resolves nothing and imports nothing; ``resolve``
does, in the worker.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pamp_pipelines.errors import InputError

SHIPPED = Path(__file__).parent / "tasks"
LM_EVAL_PREFIX = "lm_eval.tasks/"


@dataclass(frozen=True)
class Function:
    """A ``!function`` that is not imported yet: ``module.name``, looked up beside ``file`` first."""

    reference: str
    file: Path


@dataclass(frozen=True)
class TaskFile:
    """A task with its includes merged; ``files`` are all files whose bytes decide what it does."""

    config: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        return str(self.config["task"])

    @property
    def sha256(self) -> str:
        """Hash over all files of the task, whatever folder they lie in."""
        digest = hashlib.sha256()
        for file in self.files:
            data = file.read_bytes()
            digest.update(f"{file.name} {len(data)}\n".encode() + data)
        return digest.hexdigest()


def shipped_tasks() -> dict[str, Path]:
    """Tasks of this package by name."""
    return {file.stem: file for file in sorted(SHIPPED.glob("*.yaml"))}


def lm_eval_tasks() -> Path:
    """Folder of the installed lm-eval's own tasks, found without importing it."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        raise InputError("lm-eval is not installed; run `make setup`.")
    return Path(spec.origin).parent / "tasks"


def read_task(path: Path, trusted: Iterable[Path] = (), *, allow_code: bool = False) -> TaskFile:
    """Read a task file and what it includes.

    Args:
        path: the YAML file.
        trusted: folders whose tasks may call Python code, besides this package's and lm-eval's.
        allow_code: whether tasks of any folder may.

    Raises:
        InputError: unreadable, no ``task`` name, an include in a circle, or code from a folder that is not trusted.
    """
    folders = None if allow_code else [folder.resolve() for folder in (SHIPPED, lm_eval_tasks(), *trusted)]
    files: list[Path] = []
    config = _read(path.resolve(), folders, files, ())
    name = config.get("task")
    if not isinstance(name, str) or not name:
        raise InputError(f"{path}: `task` must be the name of one task, not {name!r}; groups are named, not included.")
    return TaskFile(config, tuple(files))


def _read(path: Path, trusted: list[Path] | None, files: list[Path], above: tuple[Path, ...]) -> dict[str, Any]:
    if path in above:
        raise InputError(f"{path}: includes itself by way of {' -> '.join(str(p) for p in above)}; break the circle.")
    try:
        config = yaml.load(path.read_bytes(), _loader(path, trusted, files))
    except FileNotFoundError:
        where = f", included by {above[-1]}" if above else ""
        raise InputError(f"{path}: no such task file{where}.") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable task file: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: a task file is a mapping, not {type(config).__name__}.")
    files.append(path)
    includes = config.pop("include", [])
    merged: dict[str, Any] = {}
    for include in [includes] if isinstance(includes, str) else includes:
        if include.startswith(LM_EVAL_PREFIX):
            target = lm_eval_tasks() / include.removeprefix(LM_EVAL_PREFIX)
        else:
            target = path.parent / include
        merged |= _read(target.resolve(), trusted, files, (*above, path))
    return merged | config


def _loader(path: Path, trusted: list[Path] | None, files: list[Path]) -> type[yaml.SafeLoader]:
    """A loader that keeps ``!function`` as data, adds the code's file to ``files`` and refuses it if not trusted.

    ``trusted`` None trusts every folder.
    """

    class Loader(yaml.SafeLoader):
        pass

    def function(loader: yaml.SafeLoader, node: yaml.Node) -> Function:
        if not isinstance(node, yaml.ScalarNode) or "." not in node.value:
            raise InputError(f"{path}:{node.start_mark.line + 1}: !function takes one `module.name`.")
        value = Function(node.value, path)
        code = _module_file(value)
        for file in (path, *([code.resolve()] if code.is_file() else [])):
            if trusted is not None and not any(file.is_relative_to(folder) for folder in trusted):
                raise InputError(
                    f"{path}:{node.start_mark.line + 1}: `!function {node.value}` runs code from outside the project "
                    f"({file}). Read it, then move the task into the project, or declare `allow_code: true` in the "
                    "evaluation (on the command line: --allow-code)."
                )
        if code.is_file() and code not in files:
            files.append(code)
        return value

    Loader.add_constructor("!function", function)
    return Loader


def _module_file(function: Function) -> Path:
    return function.file.parent / (function.reference.rpartition(".")[0].replace(".", "/") + ".py")


def resolve(value: Any) -> Any:
    """``value`` with every Function replaced by what it names; imports and therefore runs code.

    Raises:
        InputError: the module or the function does not exist.
    """
    if isinstance(value, dict):
        return {key: resolve(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item) for item in value]
    if not isinstance(value, Function):
        return value
    module_name, _, name = value.reference.rpartition(".")
    file = _module_file(value)
    try:
        module = _import_file(file) if file.is_file() else importlib.import_module(module_name)
        return getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{value.file}: `!function {value.reference}` cannot be found: {error}") from error


def _import_file(file: Path) -> Any:
    tasks = lm_eval_tasks()
    if file.is_relative_to(tasks):  # by its real name, so that the module exists once
        parts = file.relative_to(tasks).with_suffix("").parts
        return importlib.import_module(".".join(("lm_eval.tasks", *parts)))
    spec = importlib.util.spec_from_file_location(f"pamp_task_{hashlib.sha256(str(file).encode()).hexdigest()}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
