"""What `pamp evaluate` says of a target that is neither a directory nor a checkpoint key."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pamp_pipelines.cli import pamp


def test_a_target_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(pamp, ["evaluate", "nodir", "--suite", "arithmetic"])
    assert result.exit_code == 1
    assert "nodir: no such directory; as a checkpoint key: 'nodir' is no checkpoint key" in result.output


@pytest.mark.parametrize("other", ["two", "model/config/v0001/0000004"])
def test_several_directories_are_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    for more in ([], ["--output", "scores"]):
        result = CliRunner().invoke(pamp, ["evaluate", "one", other, "--suite", "arithmetic", *more])
        assert result.exit_code
        there = "one, two" if other == "two" else "one"
        assert f"{there}: a directory is scored alone, so run this once for each" in result.output
