"""Writes ``declarations/megatron_flags.json``: ``python -m pamp_pipelines.training.flags``."""

from __future__ import annotations

import argparse
import enum
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from pamp_pipelines import declarations
from pamp_pipelines.declarations.megatron_flags import FILE_NAME

_ACTIONS = {
    "_StoreAction": "store",
    "_StoreTrueAction": "store_true",
    "_StoreFalseAction": "store_false",
    "BooleanOptionalAction": "boolean",
    "_HelpAction": "help",
}


def generate() -> str:
    """The table as JSON text, one argument per line, sorted by spelling.

    The parser is the plain one of the wheel, so the table does not depend on optional packages that are imported later.
    """
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    entries = sorted((_entry(action) for action in parser._actions), key=lambda entry: entry["flags"])
    lines = ",\n".join("  " + json.dumps(entry, sort_keys=False) for entry in entries)
    version = importlib.metadata.version("megatron-core")
    return f'{{\n "megatron_core": {json.dumps(version)},\n "flags": [\n{lines}\n ]\n}}\n'


def _entry(action: argparse.Action) -> dict[str, Any]:
    kind = _ACTIONS[type(action).__name__]
    return {
        "flags": [flag for flag in action.option_strings if flag.startswith("--")],
        "dest": action.dest,
        "action": kind,
        "type": getattr(action.type, "__name__", None) or "str",
        "nargs": action.nargs if kind == "store" else None,
        "choices": None if action.choices is None else [_plain(choice) for choice in action.choices],
        "default": _plain(action.default),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


if __name__ == "__main__":
    Path(declarations.__path__[0], FILE_NAME).write_text(generate(), "utf-8")
