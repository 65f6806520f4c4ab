"""Where the project is found, and how its paths follow the environment."""

from pathlib import Path

import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.project import Project


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PAMP_PROJECT", raising=False)
    (tmp_path / "one/assets").mkdir(parents=True)
    (tmp_path / "one/workspace.yaml").touch()
    (tmp_path / "one/deep/down").mkdir(parents=True)
    return tmp_path / "one"


def test_upward_from_the_current_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "deep/down")
    assert Project.discover().root == root


def test_environment_wins_over_the_current_folder_and_an_argument_over_both(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two/assets").mkdir(parents=True)
    (tmp_path / "two/workspace.yaml").touch()
    monkeypatch.chdir(root)
    monkeypatch.setenv("PAMP_PROJECT", str(tmp_path / "two"))
    assert Project.discover().root == tmp_path / "two"
    assert Project.discover(root).root == root


def test_an_explicit_folder_is_not_searched_upward(root: Path) -> None:
    with pytest.raises(InputError, match=r"no project found.*--project"):
        Project.discover(root / "deep")


def test_the_folder_of_the_installed_package_is_nobodys_choice(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no project found.* set PAMP_PROJECT to its folder, or pass --project DIR"):
        Project.discover()


def test_relative_paths_start_at_the_root(root: Path) -> None:
    project = Project(root)
    assert project.resolve("data/../x") == root / "x"
    assert project.resolve("/x/y") == Path("/x/y")
    assert project.resolve("~/x") == Path.home() / "x"


def test_lake_and_dagster_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAMP_LAKE", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    assert Project(root).lake == root / "data/lake"
    assert Project(root).dagster_home == root / "data/dagster_home"
    monkeypatch.setenv("PAMP_LAKE", "/elsewhere/lake")
    monkeypatch.setenv("DAGSTER_HOME", "/elsewhere/home")
    assert Project(root).lake == Path("/elsewhere/lake")
    assert Project(root).dagster_home == Path("/elsewhere/home")


def test_a_lake_at_a_url_has_a_working_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAMP_LAKE_CACHE", "PAMP_LAKE_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAMP_LAKE", "s3://bucket/team/lake/")
    project = Project(root)
    assert project.lake_url == "s3://bucket/team/lake"
    first = project.lake
    assert first.parent == root / "data/lakes"
    assert project.lake_budget > 0
    monkeypatch.setenv("PAMP_LAKE", "s3://bucket/other")
    assert project.lake != first
    monkeypatch.setenv("PAMP_LAKE_CACHE", "/fast/disk")
    assert project.lake == Path("/fast/disk")
    monkeypatch.setenv("PAMP_LAKE", "file:///shared/lake")
    assert (project.lake_url, project.lake) == (None, Path("/shared/lake"))


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("500GB", 500 * 10**9), (" 1.5t ", 15 * 10**11)])
def test_the_budget_of_the_cache(root: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("PAMP_LAKE_CACHE_BYTES", text)
    assert Project(root).lake_budget == size


@pytest.mark.parametrize("text", ["much", "5 XB", "1.2.3G", "-1"])
def test_a_budget_that_is_no_size(root: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PAMP_LAKE_CACHE_BYTES", text)
    with pytest.raises(InputError, match=r"PAMP_LAKE_CACHE_BYTES=.*500GB"):
        _ = Project(root).lake_budget


def test_a_lake_is_relative_to_the_root_and_knows_the_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAMP_LAKE_CACHE", "PAMP_LAKE"):
        monkeypatch.delenv(name, raising=False)
    for folder in (root, root / "deep"):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PAMP_LAKE", "lakes/mine")
        assert Project(root).lake == root / "lakes/mine"
        monkeypatch.setenv("PAMP_LAKE", "s3://bucket/lake")
        monkeypatch.setenv("PAMP_LAKE_CACHE", "cache")
        assert Project(root).lake == root / "cache"
    for home in ("~/lake", "~/lake/"):
        monkeypatch.setenv("PAMP_LAKE", home)
        assert Project(root).lake == Path.home() / "lake"
    monkeypatch.setenv("PAMP_LAKE", "FILE:///shared/lake")
    assert (Project(root).lake_url, Project(root).lake) == (None, Path("/shared/lake"))
    monkeypatch.setenv("PAMP_LAKE", " S3://Bucket/Lake/ ")
    assert Project(root).lake_url == "s3://Bucket/Lake"


@pytest.mark.parametrize(
    "setting", [" ", "file:/tmp/x", "file://tmp/x", "s3:bucket", "s3:/bucket/lake", "s3://", "S3:///", "3s://b", "://b"]
)
def test_what_looks_like_a_url_and_is_none_is_no_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("PAMP_LAKE", setting)
    for use in ("lake", "lake_url"):
        with pytest.raises(InputError, match=r"^PAMP_LAKE=.*(write|give)"):
            getattr(Project(root), use)
