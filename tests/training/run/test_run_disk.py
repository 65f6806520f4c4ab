"""A disk that fills up while a run saves; the worker is a stand-in."""

import os
from typing import Any

import pytest

from pamp_pipelines.errors import DiskFull
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.training import run
from pamp_pipelines.training.kept import read_kept
from pamp_pipelines.training.saved import Saved

KIB = 1024
# what a save does first, where `full` lies beside the run: write more than there is room for
FILL = """
    if step == 8 and (job.run_dir.parent / "full").exists():
        with (directory / "__0_1.distcp").open("wb", 0) as stream:
            for _ in range(2000):
                stream.write(bytes(1000))
                os.fsync(stream.fileno())
"""


def test_a_save_on_a_full_disk_says_so_and_a_retry_goes_on(
    bench: Any, small_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # there was room at the start; others have taken it since
    monkeypatch.setattr(run, "require_space", lambda job: None)
    trainer = bench.root / "modules/fake_trainer.py"
    line = "    directory.mkdir(parents=True)\n"
    assert line in trainer.read_text()
    trainer.write_text(trainer.read_text().replace(line, line + FILL))
    whole = bench.train()
    bench.root = small_disk(512 * KIB)
    job = bench.job()
    job.run_dir.parent.mkdir(parents=True)
    (job.run_dir.parent / "full").touch()
    with pytest.raises(DiskFull, match=f"^{job.run_dir.parent}: no space left on the disk; free some and run again"):
        bench.train(job)
    assert not (job.run_dir / "manifest.json").exists()
    if not os.path.ismount(bench.root):
        return  # a worker that cannot sync anything saves nothing
    saved = Saved(job.checkpoints_dir)
    assert [step for step in saved.steps() if saved.complete(step)][-2:] == [5, 6]  # pruned or not before them

    # what the save left goes first, so that there is space again
    (job.run_dir.parent / "full").unlink()
    artifact = bench.train(job)
    assert artifact.manifest.stats["resumed_from"] == 6
    assert artifact.content == whole.content
    assert read_kept(Lake(bench.root / "lake"), CheckpointKey("model", "config", 1, 5)).stats["step"] == 5
