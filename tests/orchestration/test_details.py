"""What is shown first of an artifact."""

from pathlib import Path

import dagster as dg

from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.orchestration.details import leaderboard_details, telling
from pamp_pipelines.orchestration.values import to_metadata

CSV = """model,training_config,version,step,tokens_seen,sums/add/acc,sums/add/exact_match
tiny,both,1,8,2048,0.123456789,0.5
plain,,,,,0.1,0.25
"""


def test_a_row_of_the_leaderboard_is_a_checkpoint_with_one_metric_a_task(tmp_path: Path) -> None:
    (tmp_path / "leaderboard.csv").write_text(CSV)
    artifact = Artifact(tmp_path, Manifest(kind="leaderboard", id="i", content="c", created="now"))
    shown = leaderboard_details(artifact)["leaderboard"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert [dict(record.data) for record in shown.records] == [
        {"checkpoint": "tiny/both/v0001/0000008", "tokens": "2048", "sums: exact_match": "0.5"},
        {"checkpoint": "plain", "tokens": "", "sums: exact_match": "0.25"},
    ]


def test_a_task_without_a_preferred_metric_shows_its_first() -> None:
    assert telling(["e/t/odd", "e/t/even"], ["acc"]) == {"e/t/odd": "e: odd"}


def test_a_list_of_numbers_is_one_line() -> None:
    assert to_metadata({"kept_steps": [75, 150], "rows": [{"a": 1}]})["kept_steps"] == "75, 150"
