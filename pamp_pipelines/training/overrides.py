"""``--set key=value`` over a declared training config."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.training_config import TOKEN_FIELDS, TrainingConfig
from pamp_pipelines.declarations.validate import error_message
from pamp_pipelines.declarations.yaml_loader import parse_yaml, plain_value
from pamp_pipelines.errors import DeclarationError, InputError

_UNITS = (("iterations", "tokens"), *((field.iterations, field.tokens) for field in TOKEN_FIELDS))
_OTHER_UNIT = {a: b for pair in _UNITS for a, b in (pair, pair[::-1])}


def apply_overrides(config: TrainingConfig, overrides: Sequence[str], file: str) -> TrainingConfig:
    """The config with some fields replaced.

    Args:
        config: as declared.
        overrides: ``optimizer.lr=1e-4``; a value is read as in the YAML file, ``[…]`` and ``{…}`` included.
        file: of the config, for messages.

    Raises:
        InputError: no ``=``, an unknown field, or a value that the file would not take either.
    """
    if not overrides:
        return config
    fields = config.model_dump(mode="json", exclude_none=True)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise InputError(f"--set {override!r}: expected key=value, e.g. optimizer.lr=1e-4")
        _set(fields, key, _value(text, override))
    try:
        return TrainingConfig.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'config'}: {_problem(e)}" for e in error.errors())
        raise InputError(f"{file} with --set {' '.join(overrides)}: {problems}") from None


def require_free(overrides: Sequence[str], profile: ComputeProfile, file: str) -> None:
    """Raises InputError for an override of a field that the compute profile sets itself: it would have no effect.

    Args:
        overrides: ``key=value``.
        profile: where the run is to be.
        file: of the profile, for the message.
    """
    lost = [key for key in overrides if key.partition("=")[0].partition(".")[0] in profile.layout_fields]
    if lost:
        itself = " and ".join(profile.layout_fields)
        raise InputError(
            f"--set {' '.join(lost)} has no effect: {file} sets {itself} itself. Change it there, or take another "
            "--profile."
        )


def _problem(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return error_message(TrainingConfig, error)
    return error["msg"].removeprefix("Value error, ")


def _set(fields: dict[str, Any], key: str, value: Any) -> None:
    *parents, name = key.split(".")
    for parent in parents:
        fields = fields.setdefault(parent, {})
        if not isinstance(fields, dict):
            raise InputError(f"--set {key}: {parent!r} has no fields")
    fields[name] = value
    # what is declared in one of two units: giving one replaces the other
    if value is not None and (other := _OTHER_UNIT.get(key)):
        fields.pop(other.rpartition(".")[2], None)


def _value(text: str, override: str) -> Any:
    shown = override if len(override) <= 200 else f"{override[:199]}…"
    try:
        if text[:1] not in ("[", "{"):
            return plain_value(text)
        document = parse_yaml(text, Path())
        document.raise_problems()
        return document.value
    except DeclarationError as error:
        found = "; ".join(f"{p.field}: {p.message}" if p.field else p.message for p in error.problems)
        raise InputError(f"--set {shown!r}: {found}") from None
    except ValueError as error:
        raise InputError(f"--set {shown!r}: {error}") from None
