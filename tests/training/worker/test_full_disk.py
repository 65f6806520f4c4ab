"""A disk that fills up during a save: a small file system of the test's own, in a mount namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.lake.events import read_events
from pamp_pipelines.training.metrics import read_metrics

# $1 where checkpoints go, $2 job file, $3 Python, $4 a folder that outlives the namespace
SCRIPT = """
mount -t tmpfs -o size=4m tmpfs "$1" || exit 9
train="$3 -m torch.distributed.run --standalone --nproc-per-node=1 -m pamp_pipelines.training.worker $2"
$train && exit 8
ls "$1" > "$4/left"
"$3" -m pamp_pipelines.training.restart "$2" || exit 7
cp "$1/latest_checkpointed_iteration.txt" "$4/tracker"
mount -o remount,size=64m "$1" || exit 6
$train || exit 5
cp "$1/latest_checkpointed_iteration.txt" "$4/end"
"""


@pytest.mark.slow
@pytest.mark.system
def test_neither_the_checkpoint_before_nor_the_run_is_lost(trainer: Any, tmp_path: Path) -> None:
    job = trainer.job(tmp_path / "run", checkpoint={"interval": 4})
    job.checkpoints_dir.mkdir(parents=True)
    file = job.run_dir / "job.json"
    file.write_text(job.model_dump_json())
    words = ["sh", "-c", SCRIPT, "sh", str(job.checkpoints_dir), str(file), sys.executable, str(tmp_path)]
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "iter_0000004" in (tmp_path / "left").read_text()
    assert (tmp_path / "tracker").read_text() == "4"
    assert (tmp_path / "end").read_text() == "8"
    assert [record["iteration"] for record in read_metrics(job.metrics_path)] == list(range(1, 9))
    events, _ = read_events(job.events_path)
    (failed,) = [event.data for event in events if event.kind == "failed"]
    assert "CheckpointException" in failed["reason"]
    assert failed["iteration"] == 4
    assert events[-1].kind == "finished"
