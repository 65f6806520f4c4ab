"""A run whose numbers stop being numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.lake.events import read_events
from pamp_pipelines.training.saved import Saved


@pytest.mark.slow
def test_a_run_that_diverges_fails_and_keeps_its_checkpoints(trainer: Any, tmp_path: Path) -> None:
    optimizer = {"lr": 1e30, "min_lr": 1e30, "clip_grad": 0.0}
    job = trainer.job(tmp_path, optimizer=optimizer, checkpoint={"interval": 1})
    run = trainer.start(job)
    assert run.wait() != 0
    last = read_events(job.events_path)[0][-1]
    assert last.kind == "failed"
    assert "nan" in last.data["reason"] or "inf" in last.data["reason"]
    newest = Saved(job.checkpoints_dir).tracker()
    assert newest == last.data["iteration"]
    assert newest in run.steps()
    assert newest < job.iterations
