"""Names that lm-eval knows, found in its task files without importing it."""

import re
from collections.abc import Iterator

from pamp_pipelines.evaluation.task_files import lm_eval_tasks

_KEY = r"[\"']?(?:task|group|tag)[\"']?"
_INLINE = re.compile(rf"^{_KEY}: *[\"']?([\w.+-]+)", re.MULTILINE)
_LIST = re.compile(rf"^{_KEY}: *\n((?: *- .*\n?)+)", re.MULTILINE)
_ITEM = re.compile(r"- *[\"']?([\w.+-]+)")


def lm_eval_names() -> set[str]:
    """Tasks, groups and tags that a task file names. Some 14,000 small files are read, which takes seconds.

    Tasks that Python code makes up are not among them, so a name that is missing is suspicious and not yet wrong.
    """
    return {name for text in _texts() for name in _names(text)}


def _texts() -> Iterator[str]:
    for file in lm_eval_tasks().rglob("*.y*ml"):
        yield file.read_text(encoding="utf-8", errors="replace")


def _names(text: str) -> Iterator[str]:
    yield from _INLINE.findall(text)
    for items in _LIST.findall(text):
        yield from _ITEM.findall(items)
