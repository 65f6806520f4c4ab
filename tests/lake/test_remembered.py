"""What is remembered comes back as it was, or not at all."""

from pathlib import Path

import pytest

from pamp_pipelines.lake.remembered import recall, remember


def test_what_was_remembered_comes_back(tmp_path: Path) -> None:
    content = {"name \udcff": [1, 2.5, None, "ä"], "a": {"b": {}}}
    remember(tmp_path / "kept.json", content)
    assert recall(tmp_path / "kept.json") == content


@pytest.mark.parametrize("damage", ["", "{", "[1]", "null", '{"content": 1}', '{"sha256": "0", "content": 1}'])
def test_what_is_damaged_is_forgotten(tmp_path: Path, damage: str) -> None:
    (tmp_path / "kept.json").write_text(damage)
    assert recall(tmp_path / "kept.json") is None
    assert recall(tmp_path / "absent.json") is None


def test_every_changed_digit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    remember(path, {"documents": 31})
    path.write_text(path.read_text().replace("31", "-7"))
    assert recall(path) is None
