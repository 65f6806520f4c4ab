"""Sizes, and names of files that are no text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pamp_pipelines import cli
from pamp_pipelines.corpus.sources import expand
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.hashing import sha256_json
from pamp_pipelines.text import printable, require_text, size_of

REPOSITORY = Path(__file__).parent.parent
TOKENIZER = REPOSITORY / "data/tokenizers/shakespeare-bpe-2k"
NAME = os.fsdecode(b"x\xff.jsonl")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("500GB", 500 * 10**9), (" 1.5 t ", 15 * 10**11), ("0", 0), ("9007199254740993", 2**53 + 1)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize(
    "text", ["", "much", "5 XB", "1.2.3G", "-1", "-5GB", "inf", "-inf", "nan", "1e400", "²", "٣", "9" * 400]
)
def test_no_sizes(text: str) -> None:
    assert size_of(text) is None


@pytest.mark.parametrize("budget", ["inf", "-inf", "1e400", "-5GB", "nan", "much"])
def test_a_budget_that_is_no_size_is_status_2(budget: str) -> None:
    result = CliRunner().invoke(cli.pamp, ["evict", f"--budget={budget}", "--project", "nowhere"])
    assert result.exit_code == 2, result.output
    assert "expected a size" in result.output


@pytest.mark.parametrize(
    "args",
    [
        *(("tokenize", "--input", "a", "--tokenizer", "b", "--output", "c", f"--held-out={n}") for n in ("nan", "inf")),
        ("compare", "a", "b", "--confidence", "nan"),
    ],
)
def test_what_is_no_finite_number_is_status_2(args: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.pamp, args)
    assert result.exit_code == 2, result.output


def test_bytes_of_a_name_are_escaped() -> None:
    assert printable(f"a {NAME}") == r"a x\xff.jsonl"
    assert printable("é \ud800") == r"é \ud800"
    assert require_text("é") == "é"
    with pytest.raises(InputError, match=r"x\\xff\.jsonl: the name is not UTF-8; rename"):
        require_text(NAME)
    with pytest.raises(InputError, match=r"not UTF-8.*x\\xff\.jsonl"):
        sha256_json({"file": NAME})


def test_a_file_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"text": "To be"}\n')
    for source in ("*.jsonl", "."):
        with pytest.raises(InputError, match=r"x\\xff\.jsonl"):
            expand([source], tmp_path)


@pytest.mark.parametrize(
    "args",
    [
        ["tokenize", "--input", NAME, "--tokenizer", str(TOKENIZER), "--output", "shards", "--workers", "1"],
        ["import-hf", os.fsdecode(b"\xff"), "out"],
        ["inspect", os.fsdecode(b"\xff")],
    ],
    ids=lambda args: args[0],
)
def test_the_last_line_is_json_in_utf_8(tmp_path: Path, args: list[str]) -> None:
    (tmp_path / NAME).write_text('{"text": "To be"}\n')
    code = "import sys; from pamp_pipelines.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *args, "--json"], cwd=tmp_path, capture_output=True, timeout=120)
    error = json.loads(done.stdout.decode("utf-8").splitlines()[-1])["error"]
    assert (done.returncode, error["type"]) == (1, "InputError"), done.stderr
    assert r"\xff" in error["message"]
