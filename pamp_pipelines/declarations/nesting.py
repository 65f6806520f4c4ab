"""Which pydantic model holds the fields at a place of a declaration."""

import typing
from collections.abc import Iterator
from typing import Any

from pamp_pipelines.declarations.base import Declaration
from pamp_pipelines.declarations.yaml_loader import Loc


def model_at(cls: type[Declaration], loc: Loc) -> type[Declaration] | None:
    """The model of the fields below a place; None where there are none."""
    for part in loc:
        if isinstance(part, int):
            continue  # an item of a list of blocks
        field = cls.model_fields.get(part)
        nested = nested_model(field.annotation) if field else None
        if nested is None:
            return None
        cls = nested
    return cls


def nested_model(annotation: Any) -> type[Declaration] | None:
    """The block that a field holds: its type, one of a union such as ``HuggingFaceSource | None``, or that of items."""
    return next((part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, Declaration)), None)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in typing.get_args(annotation):
        yield from _parts(part)
