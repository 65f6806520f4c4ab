"""YAML as its readers expect it: the YAML 1.2 core schema, one line number a field, no value changed in silence.

PyYAML reads YAML 1.1: ``no`` is false, ``12:30`` is 750, ``010`` is 8, ``2024-01-01`` is a date and ``1e-5`` is
a string. Here ``1e-5`` is a number and a date is a string, as in YAML 1.2. What the two versions read differently
without anybody noticing is refused, and the message says how to write it plainly.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pamp_pipelines.errors import DeclarationError, Problem

Loc = tuple[str | int, ...]
"""A field's place: mapping keys and list indices from the top."""

MAX_DEPTH = 64
"""Lists and mappings within one another; no declaration comes near this either."""

MAX_NODES = 100_000
"""Aliases can unfold a few lines into billions of values; no declaration comes near this."""

_NULL = re.compile(r"(~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)\Z")
_HEX_OR_OCTAL = re.compile(r"0(x[0-9a-fA-F]+|o[0-7]+)\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_INF_NAN = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")

_YES_NO = re.compile(r"(yes|no|on|off|y|n)\Z", re.IGNORECASE)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+\Z")

_TOO_DEEP = "is nested too deeply: no declaration is"

_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "map", "seq")}


class _Composer(yaml.SafeLoader):
    """Composes nodes only. Without implicit resolvers every plain scalar stays as written, and this module reads it."""

    yaml_implicit_resolvers: dict = {}


@dataclass(frozen=True)
class YamlDocument:
    """One file: its value and the line of each field (1-based)."""

    path: Path
    value: Any
    lines: dict[Loc, int]
    refused: dict[Loc, list[Problem]] = field(default_factory=dict)
    """What is wrong with single values or keys, by place. A refused value is None, of a duplicate key the first stays;
    all else is as it stands in the file and can be validated."""

    @property
    def problems(self) -> list[Problem]:
        return [problem for found in self.refused.values() for problem in found]

    def raise_problems(self) -> None:
        """Raises DeclarationError when a value was refused."""
        if self.refused:
            raise DeclarationError(self.problems)

    def line_of(self, loc: Loc) -> int:
        """Line of a field, or of the nearest enclosing one that the file has."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)


def dotted(loc: Loc) -> str:
    """``("sources", 0)`` as ``sources[0]``, ``("optimizer", "lr")`` as ``optimizer.lr``."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_yaml(path: Path) -> YamlDocument:
    """Read one YAML file. Duplicate keys and values that YAML versions read differently are in ``refused``.

    Raises:
        DeclarationError: the file is unreadable, empty, not UTF-8, not YAML, not one document, or without end.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DeclarationError([Problem(path, 0, "", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start}): save it as UTF-8"
        raise DeclarationError([Problem(path, 0, "", message)]) from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> YamlDocument:
    """The same for text; ``path`` is where it is from."""
    try:
        node = _compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.problem, error.context)))
        raise DeclarationError([Problem(path, mark.line + 1 if mark else 0, "", f"is not YAML: {problem}")]) from error
    except yaml.YAMLError as error:
        raise DeclarationError([Problem(path, 0, "", f"is not YAML: {error}")]) from error
    except RecursionError as error:
        raise DeclarationError([Problem(path, 0, "", _TOO_DEEP)]) from error
    if node is None:
        raise DeclarationError([Problem(path, 1, "", "is empty: write the declaration's fields, or delete the file")])
    reader = _Reader(path)
    return YamlDocument(path, reader.read(node, ()), reader.lines, reader.refused)


def _compose(text: str) -> yaml.Node | None:
    loader = _Composer(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


class _Reader:
    """Turns nodes into plain values, collecting every problem on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refused: dict[Loc, list[Problem]] = {}
        self.lines: dict[Loc, int] = {}
        self._open: set[int] = set()
        self._nodes = 0

    def read(self, node: yaml.Node, loc: Loc) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(loc, line)
        self._nodes += 1
        if self._nodes > MAX_NODES or id(node) in self._open:
            problem = "refers to itself" if id(node) in self._open else f"unfolds to more than {MAX_NODES} values"
            raise DeclarationError([Problem(self.path, line, dotted(loc), f"an alias {problem}: write the value out")])
        if len(loc) > MAX_DEPTH:
            raise DeclarationError([Problem(self.path, line, "", _TOO_DEEP)])
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, loc)
        self._open.add(id(node))
        try:
            if node.tag not in _CORE_TAGS:
                self._problem(node, loc, f"the tag {node.tag} is not supported: remove it")
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*loc, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, loc)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, loc: Loc) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, loc, "a key must be plain text, not a list or mapping")
                continue
            key = key_node.value  # As written: a key is a name, whatever it would be as a value.
            line = key_node.start_mark.line + 1
            if key == "<<" and key_node.style is None:
                self._problem(key_node, loc, "merge keys (<<) are not part of YAML 1.2: write the fields out")
                continue
            if key in first:
                self._problem(key_node, (*loc, key), f"duplicate key, first given on line {first[key]}: keep one")
                continue
            first[key] = line
            self.lines[(*loc, key)] = line
            result[key] = self.read(value_node, (*loc, key))
        return result

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        text = node.value
        if node.tag not in _CORE_TAGS:
            self._problem(node, loc, f"the tag {node.tag} is not supported: remove it")
            return None
        # A quoted, block, folded or `!!str` scalar takes more room in the file than its text: it is meant as text.
        as_written = node.style is None and node.end_mark.pointer - node.start_mark.pointer == len(text)
        if node.tag == "tag:yaml.org,2002:str" and not as_written:
            return text
        try:
            return plain_value(text)
        except ValueError as error:
            self._problem(node, loc, str(error))
            return None

    def _problem(self, node: yaml.Node, loc: Loc, message: str) -> None:
        self.refused.setdefault(loc, []).append(Problem(self.path, node.start_mark.line + 1, dotted(loc), message))


def _trap(text: str) -> str | None:
    """What to write instead of a plain scalar that YAML 1.1 and 1.2 read differently, or None when they agree."""
    if _YES_NO.match(text):
        return f"`{text}` is a boolean in YAML 1.1 and text in YAML 1.2: write true or false, or quote it"
    if _SEXAGESIMAL.match(text):
        return f"`{text}` is a number in base 60 in YAML 1.1 and text in YAML 1.2: quote it"
    if _LEADING_ZERO.match(text):
        return f"`{text}` is octal in YAML 1.1 and decimal in YAML 1.2: drop the leading zeros, or quote it"
    return None


def plain_value(text: str) -> Any:
    """A plain scalar by the YAML 1.2 core schema; ``_`` may group digits, since nobody means anything else by it.

    Raises:
        ValueError: YAML versions read it differently, or it is too large; the message says what to write instead.
    """
    if trap := _trap(text):
        raise ValueError(trap)
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    if _INT.match(text):
        try:
            return int(text)
        except ValueError:
            message = "has too many digits for a number: write a smaller one, or quote it where text is meant"
            raise ValueError(message) from None
    if _HEX_OR_OCTAL.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    if _INF_NAN.match(text):
        return float(text.replace(".", ""))
    return text
