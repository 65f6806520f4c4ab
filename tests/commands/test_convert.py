"""What the command line of a conversion asks for, refused before any work."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pamp_pipelines import cli
from pamp_pipelines.project import Project


@pytest.fixture(autouse=True)
def _plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAMP_PROJECT", "PAMP_LAKE", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def pamp(*args: object) -> Result:
    return CliRunner().invoke(cli.pamp, [str(arg) for arg in args])


@pytest.mark.parametrize("memory", ["nan", "inf", "-inf", "1e-10", "0.1"])
@pytest.mark.parametrize("command", ["import-hf", "export-hf"])
def test_a_memory_that_no_conversion_can_do_with(
    command: str, memory: str, tiny_project: Project, tmp_path: Path
) -> None:
    result = pamp(command, tiny_project.data / "models/imported", "out", "--memory", memory)
    assert result.exit_code == 2, result.output
    assert "--memory" in result.stderr
    assert not list(tmp_path.glob("*out*"))


def test_the_least_memory_is_named_and_enough(tiny_project: Project) -> None:
    model = tiny_project.data / "models/imported"
    refused = pamp("import-hf", model, "out", "--plan", "--memory", "0.1")
    least = refused.stderr.rpartition("needs ")[2].split()[0]
    assert pamp("import-hf", model, "out", "--plan", "--memory", least).exit_code == 0


@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_profile_that_is_not_declared_is_refused(plan: list[str], tiny_project: Project) -> None:
    at = ["--project", tiny_project.root, "--profile", "nosuch", *plan]
    for words in (["import-hf", "imported"], ["export-hf", "m/c/v0001/0000001"]):
        result = pamp(*words, *at)
        assert result.exit_code == 1, result.output
        assert "nosuch" in result.stderr
    for command in ("import-hf", "export-hf"):
        result = pamp(command, tiny_project.data / "models/imported", "out", *at)
        assert result.exit_code == 2, result.output
        assert "--profile is for" in result.stderr
