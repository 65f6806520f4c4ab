"""lm-eval's own tasks, groups and tags by name, found without its index.

lm-eval parses all of its 14,000 task files at every start, which takes some 8 CPU seconds. A file is nearly always
named as its task, so the one needed is found by its name; only where that fails are the files' texts looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.task_files import lm_eval_tasks, read_task


@dataclass(frozen=True)
class Stock:
    """Where a name is defined.

    Attributes:
        kind: ``task``: one, in ``file``; ``collection``: a group, a tag, or a task made by code of its own.
        folders: what lm-eval has to index to know the name and what it refers to.
    """

    name: str
    kind: Literal["task", "collection"]
    file: Path
    folders: tuple[Path, ...]


@cache
def find_stock(name: str) -> Stock | None:
    """The task, group or tag of lm-eval with this name; None if its files name none such."""
    wanted = _plain(name)
    likely = [file for file in _files() if wanted in (_plain(file.stem), _plain(file.parent.name))]
    return _among(name, likely) or _among(name, _files())


@cache
def _files() -> tuple[Path, ...]:
    return tuple(sorted(lm_eval_tasks().rglob("*.y*ml")))


def _plain(name: str) -> str:
    return name.lower().lstrip("_").replace("-", "_")


def _among(name: str, files: Iterable[Path]) -> Stock | None:
    pattern = rf"^[\"']?{{}}[\"']?: *[\"']?{re.escape(name)}[\"']?\s*$"
    task, group = (re.compile(pattern.format(key), re.MULTILINE) for key in ("task", "(?:group|tag)"))
    item = re.compile(rf"^(?:tag|group): *\n(?: *- .*\n)*? *- *[\"']?{re.escape(name)}[\"']?\s*$", re.MULTILINE)
    collected: list[Path] = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        if task.search(text) and not re.search(r"^class:", text, re.MULTILINE):
            return Stock(name, "task", file, (file.parent,))
        if task.search(text) or group.search(text) or item.search(text):
            collected.append(file)
    if not collected:
        return None
    folders = dict.fromkeys(file.parent for file in collected)
    for file in collected:
        for member in _members(file):
            stock = _among(member, sorted(file.parent.glob("*.y*ml"))) or find_stock(member)
            folders |= dict.fromkeys(stock.folders if stock else ())
    return Stock(name, "collection", collected[0], tuple(folders))


def _members(file: Path) -> list[str]:
    """Tasks and groups that a group lists by name."""
    items = re.search(r"^task: *\n((?: *- .*\n?)+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return re.findall(r"^ *- *[\"']?([\w.+-]+)[\"']?\s*$", items[1], re.MULTILINE) if items else []


def data_sets(stock: Stock) -> list[str]:
    """Hub names of the data sets that a name may read; for a collection those of every task in its folders."""
    files = (
        [stock.file]
        if stock.kind == "task"
        else sorted(file for folder in stock.folders for file in folder.rglob("*.y*ml"))
    )
    return sorted({name for file in files for name in _data_set(file)})


def _data_set(file: Path) -> Iterator[str]:
    try:
        name = read_task(file).config.get("dataset_path")
    except InputError:  # a group, a template, or a task that is none of ours to judge
        return
    if isinstance(name, str):
        yield name
