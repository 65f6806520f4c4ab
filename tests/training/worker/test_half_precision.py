"""Training in float16, whose gradients only fit it when the loss is scaled rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.lake.events import read_events


@pytest.mark.slow
def test_no_step_is_skipped_to_find_a_scale(trainer: Any, tmp_path: Path) -> None:
    job = trainer.job(tmp_path, precision="fp16")
    trainer.finish(job)
    records = trainer.records(job)
    # a skipped step has no gradient norm, and leaves the learning rate and the weights as they were
    assert all(record["grad_norm"] > 0 and record["learning_rate"] > 0 for record in records)
    assert {record["loss_scale"] for record in records} == {2.0**10}  # 2^16 over 2 samples of 32 tokens
    assert records[-1]["loss"] < records[0]["loss"]
    (built,) = [event.data for event in read_events(job.events_path)[0] if event.kind == "construction"]
    assert built["model"]["parameter_dtypes"] == ["float16"]
    assert built["gradients"]["dtypes"] == ["float32"]
    assert built["optimizer"]["loss_scale"] == [2.0**10]
