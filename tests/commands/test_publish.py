"""``pamp publish``: a lake that was local goes to a bucket, and secrets go nowhere."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pamp_pipelines import cli
from pamp_pipelines.lake import remote
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.project import Project
from tests.s3_server import KEY_ID, SECRET, Machines, _s3_server, forget_clients, machines, own_clients, s3

__all__ = ["_s3_server", "machines", "own_clients", "s3"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root = tmp_path / "project"
    (root / "assets").mkdir(parents=True)
    (root / "workspace.yaml").touch()
    monkeypatch.delenv("PAMP_LAKE", raising=False)
    project = Project(root)
    with publish(project.lake / "corpora/c/0123", kind="raw_corpus", id="0123") as draft:
        (draft.dir / "statistics.json").write_text("{}")
    return project


def test_a_local_lake_goes_to_a_bucket(project: Project, machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    place = project.lake
    monkeypatch.setenv("PAMP_LAKE_CACHE", str(place))
    monkeypatch.setenv("PAMP_LAKE", machines.url)
    answers = [
        json.loads(CliRunner().invoke(cli.pamp, ["publish", "--json", "--project", str(project.root)]).stdout)
        for _ in range(2)
    ]
    assert [answer["published"] for answer in answers] == [[str(place / "corpora/c/0123")], []]
    assert "corpora/c/0123/statistics.json" in machines.store.list("catalogue")


def test_without_a_url_there_is_nowhere_to_go(project: Project) -> None:
    result = CliRunner().invoke(cli.pamp, ["publish", "--project", str(project.root)])
    assert result.exit_code == 1
    assert "PAMP_LAKE is no URL" in result.stderr


@pytest.mark.usefixtures("own_clients")
def test_a_store_that_is_away_is_told_without_secrets(
    project: Project, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"connect_timeout": 1, "retries": {"max_attempts": 1, "mode": "standard"}}
    monkeypatch.setitem(remote._DEFAULTS, "s3", {"config_kwargs": options})
    monkeypatch.setenv("PAMP_LAKE", machines.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{KEY_ID}:{SECRET}@127.0.0.1:9")
    forget_clients()
    result = CliRunner().invoke(cli.pamp, ["publish", "--json", "--project", str(project.root)])
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["error"]["type"] == "StorageError"
    assert f"{machines.url}/catalogue: the store does not answer" in answer["error"]["message"]
    assert SECRET not in result.output
    assert KEY_ID not in result.output
