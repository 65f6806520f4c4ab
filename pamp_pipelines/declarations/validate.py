"""One YAML file to one declaration, with every problem placed at its line."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pamp_pipelines.declarations.base import NAME_PATTERN, NAME_RULE, OWNER_PATTERN, Declaration, Inconsistent
from pamp_pipelines.declarations.nesting import model_at
from pamp_pipelines.declarations.partly import across_fields
from pamp_pipelines.declarations.suggest import did_you_mean
from pamp_pipelines.declarations.yaml_loader import Loc, YamlDocument, dotted
from pamp_pipelines.errors import DeclarationError, Problem
from pamp_pipelines.urls import without_secrets


def validated[D: Declaration](document: YamlDocument, cls: type[D]) -> D:
    """The declaration that a file holds.

    Raises:
        DeclarationError: with all problems of the file, those of its reading included.
    """
    if not isinstance(document.value, dict):
        message = f"is a {type(document.value).__name__}, not a mapping of fields such as `description: …`"
        raise DeclarationError(document.problems or [Problem(document.path, 1, "", message)])
    try:
        # Strict, so that `lr: true` and `seed: "1"` are no numbers; by way of JSON, since strict Python input would ask
        # for tuples where YAML has lists.
        declaration = cls.model_validate_json(json.dumps(document.value), strict=True)
    except ValidationError as error:
        errors = error.errors()
        refused = {details["loc"][:length] for details in errors for length in range(len(details["loc"]))}
        # Pydantic leaves refused items out when it counts: that too few are left follows from what is told of them.
        told = [details for details in errors if details["type"] != "too_short" or details["loc"] not in refused]
        problems = [p for details in told for p in _problems(document, cls, details)]
        problems += _across_fields(document, cls, errors)
        raise DeclarationError([*document.problems, *problems]) from error
    document.raise_problems()
    return declaration


def _problems(document: YamlDocument, cls: type[Declaration], error: ErrorDetails) -> list[Problem]:
    loc, cause = _place(error), (error.get("ctx") or {}).get("error")
    if _compares(cls, error) and any(place[: len(loc)] == loc for place in document.refused):
        return []  # One of the fields compared may be one that was refused: `_across_fields` looks at the others.
    if isinstance(cause, Inconsistent):
        places = [(_below(document, loc, field), message) for field, message in cause.problems]
    else:
        places = [(loc, _message(cls, loc, error))]
    return [
        Problem(document.path, document.line_of(place), dotted(place), message)
        for place, message in places
        if not any(place[:length] in document.refused for length in range(len(place) + 1))
    ]


def _across_fields(document: YamlDocument, cls: type[Declaration], errors: Iterable[ErrorDetails]) -> Iterator[Problem]:
    """What comparing the fields that are right by themselves finds."""
    misspelt = {_place(details) for details in errors if details["type"] == "extra_forbidden"}
    refused = {_place(details) for details in errors if not _compares(cls, details)} | document.refused.keys()
    for loc, field, message in across_fields(cls, document.value, refused, misspelt):
        place = _below(document, loc, field)
        yield Problem(document.path, document.line_of(place), dotted(place), message)


def _place(error: ErrorDetails) -> Loc:
    return tuple(part for part in error["loc"] if part != "[key]")


def _compares(cls: type[Declaration], error: ErrorDetails) -> bool:
    """Whether an error is of several fields of a block, and not of one value."""
    return isinstance((error.get("ctx") or {}).get("error"), Inconsistent) and model_at(cls, _place(error)) is not None


def _below(document: YamlDocument, loc: Loc, field: str) -> Loc:
    """The place of a dotted field, of which keys may hold dots themselves."""
    if not field:
        return loc
    return (*loc, field) if (*loc, field) in document.lines else (*loc, *field.split("."))


def error_message(cls: type[Declaration], error: ErrorDetails) -> str:
    """One of pydantic's errors in plain words, with the field that was meant where a name is unknown."""
    return _message(cls, error["loc"], error)


def _message(cls: type[Declaration], loc: Loc, error: ErrorDetails) -> str:
    given = error["input"]
    match error["type"]:
        case "extra_forbidden":
            fields = _fields_at(cls, loc[:-1])
            hint = did_you_mean(str(loc[-1]), fields) or f" Known: {', '.join(fields)}."
            return f"unknown field.{hint}"
        case "missing":
            return f"is required: {_docstring(cls, loc)}".rstrip(": ")
        case "string_type" if isinstance(given, int | float):
            return f"must be text, but {given!r} is a {type(given).__name__}: quote it"
        case "int_type" | "float_type" | "bool_type" if isinstance(given, str):
            return f"must be {_plain_type(error['type'])}, but {given!r} is text: remove the quotes, or correct it"
        case "string_pattern_mismatch" if (error.get("ctx") or {}).get("pattern") == OWNER_PATTERN:
            return (
                f"{given!r} is not an owner: give team:name, or an e-mail address whose domain ends in 2 to 7 letters"
            )
        case "string_pattern_mismatch" if (error.get("ctx") or {}).get("pattern") == NAME_PATTERN:
            return f"{given!r} is not a name: {NAME_RULE}"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{message}, not {_shown(given)}"


def _plain_type(kind: str) -> str:
    return {"int_type": "a whole number", "float_type": "a number", "bool_type": "true or false"}[kind]


def _shown(value: Any) -> str:
    text = without_secrets(json.dumps(value))
    return text if len(text) <= 60 else text[:57] + "…"


def _docstring(cls: type[Declaration], loc: Loc) -> str:
    model = model_at(cls, loc[:-1])
    field = model.model_fields.get(str(loc[-1])) if model else None
    return (field.description or "").split(". ")[0] if field else ""


def _fields_at(cls: type[Declaration], loc: Loc) -> list[str]:
    model = model_at(cls, loc)
    return list(model.model_fields) if model else []
