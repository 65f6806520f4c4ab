"""A run whose numbers stop being numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.lake.events import read_events
from pamp_pipelines.training.arguments import megatron_argv
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


@pytest.mark.slow
def test_a_run_without_megatrons_search_ends_at_the_norm_of_its_gradients(trainer: Any, tmp_path: Path) -> None:
    optimizer = {"lr": 1e30, "min_lr": 1e30, "clip_grad": 1.0}
    job = trainer.job(tmp_path, optimizer=optimizer, checkpoint={"interval": 1}, determinism="fast")
    run = trainer.start(job)
    assert run.wait() != 0
    last = read_events(job.events_path)[0][-1]
    assert last.kind == "failed"
    assert "the norm of the gradients is nan" in last.data["reason"]
    # the step that spoiled the weights was neither reported nor saved
    newest = Saved(job.checkpoints_dir).tracker()
    steps = run.steps()
    assert newest == last.data["iteration"]
    assert newest == max(steps)
    assert newest < job.iterations


@pytest.mark.parametrize(
    ("determinism", "clip_grad", "searches"), [("exact", 1.0, True), ("fast", 1.0, False), ("fast", 0.0, True)]
)
def test_megatron_searches_where_no_norm_says_it(
    trainer: Any, tmp_path: Path, determinism: str, clip_grad: float, searches: bool
) -> None:
    job = trainer.job(tmp_path, optimizer={"lr": 1e-3, "clip_grad": clip_grad}, determinism=determinism)
    assert ("--no-check-for-nan-in-loss-and-grad" not in megatron_argv(job, cuda=False)) == searches
