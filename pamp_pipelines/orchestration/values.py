"""Plain JSON values as Dagster metadata values that the UI renders well."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

MAX_TABLE_ROWS = 50


def to_metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars as numbers, which the UI plots, lists of flat objects as tables, of scalars as text, the rest as JSON.

    None is left out.
    """
    return {name: _value(value) for name, value in values.items() if value is not None}


def table(rows: Sequence[Mapping[str, Any]], schema: dg.TableSchema | None = None) -> dg.MetadataValue:
    """Rows of flat objects; columns are the union of their keys, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    records = [dg.TableRecord({c: _cell(row.get(c)) for c in columns}) for row in rows[:MAX_TABLE_ROWS]]
    return dg.MetadataValue.table(records, schema=schema)


def _value(value: Any) -> Any:
    if isinstance(value, bool):
        return dg.MetadataValue.bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        return dg.MetadataValue.text(str(value))  # JSON has no NaN
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple) and value and all(_flat(row) for row in value):
        return table(value)
    if isinstance(value, list | tuple) and value and all(isinstance(item, int | float | str) for item in value):
        return ", ".join(map(str, value))
    return dg.MetadataValue.json(value)


def _flat(row: Any) -> bool:
    return isinstance(row, Mapping) and row != {} and not any(isinstance(v, Mapping | list) for v in row.values())


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value if value is not None else ""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
