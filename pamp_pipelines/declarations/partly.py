"""What compares the fields of a declaration of which some were refused: told all the same, where it needs none of them.

Pydantic compares fields only once each is right, so that one wrong value would hide what is wrong with others.
"""

import contextlib
import json
from collections.abc import Collection, Iterator
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pamp_pipelines.declarations.base import Declaration
from pamp_pipelines.declarations.nesting import nested_model
from pamp_pipelines.declarations.yaml_loader import Loc


def across_fields(
    cls: type[Declaration], value: Any, refused: Collection[Loc], misspelt: Collection[Loc]
) -> Iterator[tuple[Loc, str, str]]:
    """Place of a declaration or of a block in it, a dotted field below that, and what is wrong.

    Args:
        cls: what the file declares.
        value: what it holds.
        refused: places whose values are wrong, or unknown.
        misspelt: places of unknown fields: what is absent beside one may be what was meant.
    """
    for loc, partial in _parts(cls, value, refused, misspelt, ()):
        for check in partial.checks():
            with contextlib.suppress(AttributeError):  # it needs a field that is not there
                for field, message in check():
                    yield loc, field, message


def _parts(
    cls: type[Declaration], value: Any, refused: Collection[Loc], misspelt: Collection[Loc], loc: Loc
) -> Iterator[tuple[Loc, Declaration]]:
    """A declaration with its sound fields only, after those of its blocks."""
    fields: dict[str, Any] = {}
    unclear = any(place[:-1] == loc for place in misspelt)
    for name, field in cls.model_fields.items():
        place = (*loc, name)
        if place in refused:
            continue
        if name not in value:
            if not field.is_required() and not unclear:
                fields[name] = field.get_default(call_default_factory=True)
            continue
        given, block = value[name], nested_model(field.annotation)
        if block is not None and isinstance(given, dict):
            below = list(_parts(block, given, refused, misspelt, place))
            yield from below
            fields[name] = below[-1][1]
        elif block is not None and isinstance(given, list):
            items = [(index, item) for index, item in enumerate(given) if isinstance(item, dict)]
            parts = [list(_parts(block, item, refused, misspelt, (*place, index))) for index, item in items]
            yield from (part for below in parts for part in below)
            if len(items) == len(given):
                fields[name] = tuple(below[-1][1] for below in parts)
        elif not any(other[: len(place)] == place for other in refused):
            with contextlib.suppress(ValidationError):
                fields[name] = _value(field, given)
    partial = cls.model_construct()
    partial.__dict__.clear()
    partial.__dict__.update(fields)
    yield loc, partial


def _value(field: FieldInfo, given: Any) -> Any:
    """What pydantic makes of a value that is right by itself."""
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return adapter.validate_json(json.dumps(given), strict=True)
