"""Exports come and go within a budget."""

import json
import os

import pytest
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.errors import MissingInput, VerificationFailed
from pamp_pipelines.evaluation import export_cache
from pamp_pipelines.evaluation.export_cache import evict, leased, restore
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.store import CheckpointKey

KEYS = [CheckpointKey("tiny", "poems", 1, step) for step in (0, 10, 20)]


@pytest.fixture
def exported(builder):
    """Three exports of some 22 bytes, used one after another."""
    for age, key in enumerate(KEYS):
        path = builder.export(key).path
        os.utime(path / "manifest.json", (1000 + age, 1000 + age))
    return builder


def sizes(builder):
    return {key.step: builder.lake.export_dir(key).is_dir() for key in KEYS}


def test_the_least_recently_used_go_first(exported):
    one = read_artifact(exported.lake.export_dir(KEYS[0])).bytes
    with leased(exported.lake.export_dir(KEYS[0])):
        pass  # scored just now
    done = evict(exported.lake, budget=2 * one + 2)
    assert sizes(exported) == {0: True, 10: False, 20: True}
    assert [path for path, _ in done.evicted] == [exported.lake.export_dir(KEYS[1])]
    assert done.bytes_left <= 2 * one + 2
    assert not evict(exported.lake, budget=10**9).evicted


def test_what_is_leased_stays(exported):
    with leased(exported.lake.export_dir(KEYS[0])):
        done = evict(exported.lake, budget=0)
        assert sizes(exported) == {0: True, 10: False, 20: False}
        assert done.leased == (exported.lake.export_dir(KEYS[0]),)
    evict(exported.lake, budget=0)
    assert not any(sizes(exported).values())
    with pytest.raises(MissingInput, match="was evicted"), leased(exported.lake.export_dir(KEYS[0])):
        pass


def test_an_evicted_export_is_made_again_and_keeps_its_verdicts(exported, monkeypatch):
    path = exported.lake.export_dir(KEYS[0])
    before = (path / "manifest.json").read_text()
    assert not restore(None, exported.lake, KEYS[0]), "it is there"
    evict(exported.lake, budget=0)
    monkeypatch.setattr(export_cache, "export_job", lambda catalog, lake, key: key)
    monkeypatch.setattr(export_cache, "export_hf", lambda key, on_event: exported.export(key))
    assert restore(None, exported.lake, KEYS[0])
    assert (path / "manifest.json").read_text() == before
    read_artifact(path, verify="hash")
    assert not restore(None, exported.lake, KEYS[0])

    evict(exported.lake, budget=0)

    def another(key, on_event):
        made = exported.export(key)
        manifest = made.manifest.model_copy(update={"content": "f" * 64})
        return type(made)(made.path, manifest)

    monkeypatch.setattr(export_cache, "export_hf", another)
    with pytest.raises(VerificationFailed, match=r"made again with content ffffffffffff"):
        restore(None, exported.lake, KEYS[0])


def test_the_command_says_what_went(exported, tmp_path, monkeypatch):
    (tmp_path / "assets").mkdir()
    (tmp_path / "workspace.yaml").write_text("")
    monkeypatch.setenv("PAMP_LAKE", str(exported.lake.root.absolute()))
    result = CliRunner().invoke(pamp, ["evict", "--budget", "0.03kB", "--project", str(tmp_path), "--json"])
    data = json.loads(result.stdout.splitlines()[-1])
    assert len(data["evicted"]) == 2
    assert data["bytes_left"] <= 30
    assert CliRunner().invoke(pamp, ["evict", "--budget", "much", "--project", str(tmp_path)]).exit_code == 2
