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
