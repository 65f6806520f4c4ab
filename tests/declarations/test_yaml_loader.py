"""Values are read by YAML 1.2, traps are refused with the line they stand on."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pamp_pipelines.declarations.yaml_loader import dotted, read_yaml
from pamp_pipelines.errors import DeclarationError


def read(folder: Path, text: str) -> Any:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    document = read_yaml(path)
    document.raise_problems()
    return document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("3e-4", 3e-4),
        ("1E3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2.5e+3", -2500.0),
        ("307_200", 307200),
        ("0x1f", 31),
        ("0o17", 15),
        ("0", 0),
        ("-7", -7),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("team:nlp", "team:nlp"),
        ("<|endoftext|>", "<|endoftext|>"),
        ("'no'", "no"),
        ('"12:30"', "12:30"),
        ("'010'", "010"),
        ("!!str 12", "12"),
        ("!!int '12'", 12),
        ("|\n  12\n", "12\n"),
        ("norway", "norway"),
    ],
)
def test_scalars(tmp_path: Path, text: str, value: Any) -> None:
    got = read(tmp_path, f"a: {text}").value["a"]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("text", ["no", "Yes", "on", "OFF", "y", "12:30", "1:30:00", "010", "-0123", "08"])
def test_traps_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DeclarationError, match=rf"x\.yaml:3: a\.b: `{text}` .*quote it"):
        read(tmp_path, f"# comment\na:\n  b: {text}\n")


def test_every_trap_and_duplicate_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as caught:
        read(tmp_path, "a: no\nb: [1, 12:30]\nc: 1\nc: 2\nd: {e: 1, e: 2}\n")
    places = [(p.line, p.field) for p in caught.value.problems]
    assert places == [(1, "a"), (2, "b[1]"), (4, "c"), (5, "d.e")]
    assert "first given on line 3" in caught.value.problems[2].message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("a: [1\n", "x.yaml:2: is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML: .*another document"),
        ("a:\tb: 1\n", "is not YAML"),
        ("a: !!python/object:os.system x\n", "x.yaml:1: a: the tag .* is not supported"),
        ("a: !foo [1]\n", "x.yaml:1: a: the tag !foo is not supported"),
        ("b: &x {c: 1}\na:\n  <<: *x\n", "x.yaml:3: a: merge keys"),
        ("? [1, 2]\n: 3\n", "a key must be plain text"),
        ("a: &x [*x]\n", "an alias refers to itself"),
        (f"a: {'9' * 5000}\n", "x.yaml:1: a: has too many digits"),
        ("a: *nowhere\n", "is not YAML: .*undefined alias"),
        ("[" * 5000, "nested too deeply|is not YAML"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a: " + "[" * 100 + "]" * 100, "x.yaml:1: is nested too deeply"),
        ("a: " + "{b: " * 100 + "1" + "}" * 100, "x.yaml:1: is nested too deeply"),
    ],
)
def test_what_is_no_declaration(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        read(tmp_path, text)


def test_aliases_cannot_unfold_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(DeclarationError, match="unfolds to more than"):
        read(tmp_path, "\n".join(lines))


def test_wrong_encoding_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes("licence: é".encode("latin-1"))
    with pytest.raises(DeclarationError, match="is not UTF-8 text"):
        read_yaml(path)
    with pytest.raises(DeclarationError, match="cannot be read"):
        read_yaml(tmp_path / "absent.yaml")


def test_what_is_refused_leaves_the_rest_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: no\nb: [1, 010]\nc: 1\nc: 2\n")
    document = read_yaml(path)
    assert document.value == {"a": None, "b": [1, None], "c": 1}
    assert list(document.refused) == [("a",), ("b", 1), ("c",)]


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path).value == {"a": 1}


def test_lines_of_fields(tmp_path: Path) -> None:
    document = read(tmp_path, "a: 1\nb:\n  c:\n    - x\n    - y: 2\n")
    assert document.line_of(("a",)) == 1
    assert document.line_of(("b", "c")) == 3
    assert document.line_of(("b", "c", 0)) == 4
    assert document.line_of(("b", "c", 1, "y")) == 5
    assert document.line_of(("b", "absent")) == 2
    assert document.line_of(("absent",)) == 1
    assert dotted(("b", "c", 1, "y")) == "b.c[1].y"


def test_keys_are_names_as_written(tmp_path: Path) -> None:
    assert read(tmp_path, "no: 1\n010: 2\ntrue: 3\n").value == {"no": 1, "010": 2, "true": 3}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_what_pyyaml_writes_is_read_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    """PyYAML quotes whatever YAML 1.1 reads as something else, so nothing that it writes is a trap."""
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(yaml.safe_dump({"a": value}), encoding="utf-8", newline="")
    assert read_yaml(path).value == {"a": value}


_PIECES = st.lists(
    st.sampled_from(
        [
            "a: ",
            "b",
            "- ",
            "\n",
            "  ",
            ":",
            "{",
            "}",
            "[",
            "]",
            "&x ",
            "*x",
            "!!int ",
            "? ",
            "'",
            '"',
            "|\n",
            "#",
            "0",
            ".",
        ]
    )
    | st.text(max_size=3),
    max_size=12,
)


@given(_PIECES)
def test_whatever_a_file_holds_the_only_error_is_a_declaration_error(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.yaml"
    path.write_bytes("".join(pieces).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(DeclarationError):
        read_yaml(path)
