"""Checks that warn, each with its declared limit."""

from __future__ import annotations

from typing import Any

import pytest

from pamp_pipelines.declarations.training_config import Limits
from pamp_pipelines.training.curves import grad_norm_growth, loss_spikes


def curve(losses: list[float | None]) -> list[dict[str, Any]]:
    return [{"iteration": step, "loss": loss} for step, loss in enumerate(losses, 1)]


def test_a_spike_is_a_loss_far_above_the_twenty_before_it() -> None:
    losses: list[float | None] = [4.0 - step / 100 for step in range(60)]
    assert loss_spikes(curve(losses), Limits()).passed
    losses[40] = 6.0
    losses[50] = None  # not finite: another check's matter
    verdict = loss_spikes(curve(losses), Limits())
    assert (verdict.passed, verdict.severity, verdict.metadata["count"]) == (False, "WARN", 1)
    assert "iterations 41" in verdict.description
    assert loss_spikes(curve(losses), Limits(loss_spike=1.0)).passed
    # the first losses of a run fall fast and have nothing to be compared with
    assert loss_spikes(curve([9.0, 1.0, 5.0]), Limits()).passed


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (9.9, True), (10.1, False)])
def test_gradients_that_have_grown(factor: float, passed: bool, make_job: Any) -> None:
    job = make_job(optimizer={"lr": 1.0, "warmup_iterations": 3}, iterations=100)
    norms = [50.0, 50.0, 50.0, *[1.0] * 48, *[factor] * 49]
    metrics = [{"iteration": step, "grad_norm": norm} for step, norm in enumerate(norms, 1)]
    assert grad_norm_growth(job, metrics).passed is passed
    assert grad_norm_growth(job, metrics[:15]).passed
