"""Checks of a run's curves that warn: declared limits, see ``declarations.training_config.Limits``."""

import statistics

from pamp_pipelines.declarations.training_config import Limits
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.training.job import TrainJob
from pamp_pipelines.training.metrics import Metrics

_BEFORE = 20
"""Logged losses that a loss is compared with."""


def series(metrics: Metrics, name: str) -> list[float]:
    """Values of a metric in order of steps, where it was logged."""
    return [float(entry[name]) for entry in metrics if isinstance(entry.get(name), int | float)]


def loss_spikes(metrics: Metrics, limits: Limits) -> CheckResult:
    """`loss_spikes`: no loss exceeds the mean of the twenty before it by more than the limit."""
    entries = [(entry["iteration"], entry["loss"]) for entry in metrics if isinstance(entry.get("loss"), int | float)]
    spikes = []
    for index in range(_BEFORE, len(entries)):
        usual = statistics.fmean(loss for _, loss in entries[index - _BEFORE : index])
        step, loss = entries[index]
        if loss > usual * (1 + limits.loss_spike):
            spikes.append({"iteration": step, "loss": loss, "usual": usual})
    steps = ", ".join(str(spike["iteration"]) for spike in spikes[:10])
    return CheckResult(
        name="loss_spikes",
        passed=not spikes,
        severity="WARN",
        description=f"{len(spikes)} losses are more than {limits.loss_spike:.0%} above the {_BEFORE} before them"
        + (f": iterations {steps}." if spikes else "."),
        metadata={"spikes": spikes[:10], "count": len(spikes), "limit": limits.loss_spike},
    )


def grad_norm_growth(job: TrainJob, metrics: Metrics) -> CheckResult:
    """`grad_norm_growth`: the median gradient norm of the last tenth against the tenth after warm-up.

    Passes with fewer than twenty logged norms after warm-up: there is nothing to compare.
    """
    name, limit = "grad_norm_growth", job.limits.grad_norm_growth
    norms = series([e for e in metrics if e["iteration"] > job.optimizer.warmup_iterations], "grad_norm")
    tenth = len(norms) // 10
    if tenth < 2:
        text = f"Not compared: {len(norms)} gradient norms were logged after warm-up."
        return CheckResult(name=name, passed=True, severity="WARN", description=text, metadata={"norms": len(norms)})
    first, last = statistics.median(norms[:tenth]), statistics.median(norms[-tenth:])
    growth = last / first if first else 1.0
    return CheckResult(
        name=name,
        passed=growth <= limit,
        severity="WARN",
        description=f"The gradient norm went from {first:.4g} to {last:.4g}: {growth:.2f}-fold; limit {limit:g}.",
        metadata={"first": first, "last": last, "growth": growth, "limit": limit},
    )
