"""What Dagster was last told of a partition, kept in the lake."""

from pathlib import Path

import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.recorded import Recorded, read_recorded, write_recorded
from pamp_pipelines.lake.store import Lake

PARTITIONS = [
    ("raw_corpus", "plays"),
    ("raw_corpus", "manifest"),
    ("tokenized_shards", "plays|scratch"),
    ("eval_scores/sums", "scratch/both/v0001/0000004"),
    ("leaderboard", None),
]


def recorded(word: str) -> Recorded:
    return Recorded(id=word, content=word, at=1.5, code_version="3", declarations={"model_declaration": {"m": word}})


def test_each_partition_has_a_record_of_its_own(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for asset, partition in PARTITIONS:
        assert read_recorded(lake, asset, partition) is None
        write_recorded(lake, asset, partition, recorded("older"))
        write_recorded(lake, asset, partition, recorded(f"{asset} {partition}"))
    for asset, partition in PARTITIONS:
        assert read_recorded(lake, asset, partition) == recorded(f"{asset} {partition}")
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize("text", ["{", "{}", '{"id": 1}', "\0"])
def test_a_damaged_record_names_its_file(tmp_path: Path, text: str) -> None:
    file = Lake(tmp_path).recorded_file("raw_corpus", "plays")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(InputError, match=str(file)):
        read_recorded(Lake(tmp_path), "raw_corpus", "plays")


def test_a_folder_in_its_place_is_damage(tmp_path: Path) -> None:
    Lake(tmp_path).recorded_file("raw_corpus", "plays").mkdir(parents=True)
    with pytest.raises(InputError, match="not readable"):
        read_recorded(Lake(tmp_path), "raw_corpus", "plays")
