"""`pamp report` builds what the asset builds, in the lake or elsewhere, and says where it is."""

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from pamp_pipelines.cli import pamp
from pamp_pipelines.evaluation.leaderboard import leaderboard_id
from pamp_pipelines.evaluation.scores import COLUMNS, SCORES, write_scores
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import CheckpointKey, Lake


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with the scores of one checkpoint in its lake."""
    monkeypatch.delenv("PAMP_LAKE", raising=False)
    root = tmp_path / "project"
    (root / "assets").mkdir(parents=True)
    (root / "workspace.yaml").write_text("")
    return root


def scored(root: Path) -> Lake:
    lake = Lake(root / "data/lake")
    key = CheckpointKey("模型", "poems", 1, 10)
    row = dict.fromkeys(COLUMNS) | {"model": key.model, "training_config": "poems", "version": 1, "step": 10}
    row |= {"tokens_seen": 2560, "evaluation": "sums", "task": "sums", "metric": "exact_match", "seconds": 1.0}
    with publish(lake.scores_dir(key, "sums"), kind="eval_scores", id="a" * 64) as draft:
        write_scores(draft.dir / SCORES, [row | {"value": 0.25, "stderr": 0.1, "n": 24, "higher_is_better": True}])
    return lake


def report(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(pamp, ["report", "--project", str(root), *arguments])


def test_page_and_tables_are_written_and_named(project: Path) -> None:
    lake = scored(project)
    result = report(project, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout.splitlines()[-1])
    assert data["artifact"]["id"] == leaderboard_id(lake), "what the asset would make"
    assert Path(data["report"]).read_text().startswith("<!doctype html>")
    assert pd.read_parquet(data["parquet"])["value"].tolist() == [0.25]
    assert pd.read_csv(data["csv"])["sums/sums/exact_match"].tolist() == [0.25]
    assert data["leaderboard"][0]["model"] == "模型"

    plain = report(project)
    assert plain.exit_code == 0, plain.output
    assert plain.stderr == "", "nothing has changed, so nothing is built"
    assert "0.25" in plain.stdout
    assert str(lake.reports_dir / "index.html") in plain.stdout


def test_another_folder(project: Path, tmp_path: Path) -> None:
    lake = scored(project)
    assert report(project, "--output", str(tmp_path / "sent")).exit_code == 0
    assert (tmp_path / "sent/index.html").is_file()
    assert not lake.reports_dir.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("do not touch")
    refused = report(project, "--output", str(tmp_path / "mine"))
    assert refused.exit_code == 1
    assert (tmp_path / "mine/thesis.txt").read_text() == "do not touch"


def test_no_scores_is_said(project: Path) -> None:
    result = report(project)
    assert result.exit_code == 0
    assert "no readable scores yet" in result.stdout
