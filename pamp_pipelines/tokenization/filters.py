"""The declared filters, applied to a batch of documents; every document that goes is counted by a reason."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pamp_pipelines.declarations.corpus import Filter, MinHash
from pamp_pipelines.tokenization.datatrove_blocks import datatrove_step

DUPLICATE, NEAR_DUPLICATE = "duplicate", "near_duplicate"

Step = Callable[[str, Sequence[Any]], "str | tuple[str] | None"]
"""Gives the text to go on with, or None to drop the document, or a reason of its own in a tuple; the second argument
holds the values of its fields."""


class Filters:
    """Filters in their declared order.

    Args:
        declared: as the corpus has them.
        also: further fields that are wanted with each document, whatever the filters need.

    Attributes:
        fields: names of the fields that have to be read beside the text.
        compares: whether documents are compared with each other; that is done when the pieces are joined, since it
            needs them all.
        minhash: how similar ones are found, if they are.
    """

    def __init__(self, declared: Sequence[Filter], also: Sequence[str] = ()) -> None:
        wanted = [*also, *(step.language.field for step in declared if step.language)]
        for step in declared:
            wanted += step.datatrove.metadata.values() if step.datatrove else ()
        self.fields = tuple(dict.fromkeys(wanted))
        self.compares = any(step.compares for step in declared)
        self.minhash = minhash_of(declared)
        self._steps = [made for step in declared if (made := _step(step, self.fields))]

    def apply(
        self, texts: list[str], fields: list[list[Any]], dropped: Counter[str]
    ) -> tuple[list[str], list[list[Any]]]:
        """The texts that are left, with their fields; ``dropped`` is added to."""
        if not self._steps:
            return texts, fields
        kept: list[str] = []
        kept_fields: list[list[Any]] = []
        nothing: Sequence[Any] = ()
        for index, original in enumerate(texts):
            text = original
            values = fields[index] if fields else nothing
            for reason, step in self._steps:
                result = step(text, values)
                if result.__class__ is not str:
                    dropped[result[0] if result else reason] += 1
                    break
                text = result
            else:
                kept.append(text)
                if fields:
                    kept_fields.append(fields[index])
        return kept, kept_fields


def minhash_of(declared: Sequence[Filter]) -> MinHash | None:
    """How similar texts are found, where that is declared."""
    return next((step.minhash for step in declared if step.minhash), None)


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
    if (block := declared.datatrove) is not None:
        return "", datatrove_step(block, fields)
    return None


def _known(value: Any, keep: set[str]) -> bool:
    return isinstance(value, str) and value in keep
