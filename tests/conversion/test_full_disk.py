"""Import and export onto a disk that is too small: told by name, nothing is published, nothing is broken."""

from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.conversion.exporter import export_hf
from pamp_pipelines.conversion.importer import import_hf
from pamp_pipelines.conversion.job import plain_export_job, plain_import_job
from pamp_pipelines.errors import PampError
from pamp_pipelines.lake.artifact import read_artifact
from tests.conversion.test_stage import write_model

KIB = 1024


def left_in(folder: Path) -> set[str]:
    """Names but those of locks, and of finished parts that the next attempt uses."""
    return {f.name for f in folder.iterdir() if not f.name.endswith((".lock", ".buckets", ".intact.json"))}


@pytest.mark.parametrize("size", [256 * KIB, 32 * KIB])
def test_a_full_disk_ends_an_import_with_its_name(config_of: Any, small_disk: Any, tmp_path: Path, size: int) -> None:
    """Once in the middle of the weights, and once before the worker can say anything."""
    source = write_model(tmp_path / "source", config_of("llama"))
    assert (source / "model.safetensors").stat().st_size > 256 * KIB
    disk = small_disk(size)
    with pytest.raises(PampError, match=rf"^{disk}: no space left on the disk; free some and run again"):
        import_hf(plain_import_job(source, disk / "imported"))
    assert left_in(disk) == set()


def test_a_full_disk_ends_an_export_and_leaves_an_earlier_one(config_of: Any, small_disk: Any, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", config_of("llama"))
    import_hf(plain_import_job(source, tmp_path / "imported"))
    first = export_hf(plain_export_job(tmp_path / "imported", tmp_path / "whole"))
    disk = small_disk((source / "model.safetensors").stat().st_size * 3 // 2)
    (disk / "exported").mkdir()
    for file in first.path.iterdir():
        (disk / "exported" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(PampError, match=rf"^{disk}: no space left on the disk; free some and run again"):
        export_hf(plain_export_job(tmp_path / "imported", disk / "exported", max_shard_bytes=100 * KIB))
    assert left_in(disk) == {"exported"}
    assert read_artifact(disk / "exported", verify="hash").content == first.content
