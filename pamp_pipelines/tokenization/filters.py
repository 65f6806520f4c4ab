"""The declared filters, applied to a batch of documents; every document that goes is counted by a reason."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pamp_pipelines.declarations.corpus import Filter

DUPLICATE = "duplicate"

Step = Callable[[str, Sequence[Any]], "str | None"]
"""Gives the text to go on with, or None to drop the document; the second argument holds the values of its fields."""


class Filters:
    """Filters in their declared order.

    Attributes:
        fields: names of the fields that have to be read beside the text.
        deduplicate: whether equal texts are dropped; that is done when the pieces are joined, since it needs them all.
    """

    def __init__(self, declared: Sequence[Filter]) -> None:
        self.fields = tuple(step.language.field for step in declared if step.language)
        self.deduplicate = any(step.deduplicate for step in declared)
        self._steps = [made for step in declared if (made := _step(step, self.fields))]

    def apply(self, texts: list[str], fields: Sequence[Sequence[Any]], dropped: Counter[str]) -> list[str]:
        """The texts that are left; ``dropped`` is added to."""
        if not self._steps:
            return texts
        kept = []
        nothing: Sequence[Any] = ()
        for index, original in enumerate(texts):
            text = original
            values = fields[index] if fields else nothing
            for reason, step in self._steps:
                if (result := step(text, values)) is None:
                    dropped[reason] += 1
                    break
                text = result
            else:
                kept.append(text)
        return kept


def _step(declared: Filter, fields: Sequence[str]) -> tuple[str, Step] | None:
    if (form := declared.normalize) is not None:
        return "", lambda text, _: text if unicodedata.is_normalized(form, text) else unicodedata.normalize(form, text)
    if (least := declared.min_characters) is not None:
        return "too_short", lambda text, _: text if len(text) >= least else None
    if (most := declared.max_characters) is not None:
        return "too_long", lambda text, _: text if len(text) <= most else None
    if declared.drop_matching is not None:
        search = re.compile(declared.drop_matching).search
        return "matches_pattern", lambda text, _: None if search(text) else text
    if (language := declared.language) is not None:
        index, keep = fields.index(language.field), set(language.keep)
        return "other_language", lambda text, values: text if _known(values[index], keep) else None
    return None


def _known(value: Any, keep: set[str]) -> bool:
    return isinstance(value, str) and value in keep
