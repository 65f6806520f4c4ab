"""What each training run cost, as far as its metrics say; runs that are still going included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from pamp_pipelines.errors import InputError
from pamp_pipelines.training.job import read_job
from pamp_pipelines.training.metrics import read_metrics

PRICE = "PAMP_GPU_HOUR_PRICE"
"""Environment variable: price of an hour of one training process (one GPU), in any currency; unset where unknown."""


@dataclass(frozen=True)
class Cost:
    """Of one run.

    Attributes:
        seconds: spent in iterations; start, validation and saving not counted.
        hours: of all processes together: GPU-hours where each has a GPU.
        price: ``hours`` times the price of one; None where that is not known.
    """

    run: str
    tokens: int
    seconds: float
    tokens_per_second: float
    processes: int
    hours: float
    price: float | None


def costs(runs: Mapping[str, Path]) -> list[Cost]:
    """Costs of version directories by name; runs without timings, or with a damaged job, are left out."""
    price = hour_price()
    found = []
    for name, folder in runs.items():
        try:
            job = read_job(folder / "job.json")
        except InputError:
            continue
        timed = [m for m in read_metrics(folder / "metrics.jsonl") if m.get("seconds_per_iteration")]
        if not timed:
            continue
        gaps = [b["iteration"] - a["iteration"] for a, b in pairwise(timed)]
        seconds = sum(m["seconds_per_iteration"] * gap for m, gap in zip(timed, [1, *gaps], strict=True))
        hours = seconds * job.world_size / 3600
        found.append(
            Cost(
                run=name,
                tokens=timed[-1]["iteration"] * job.tokens_per_iteration,
                seconds=seconds,
                tokens_per_second=median(job.tokens_per_iteration / m["seconds_per_iteration"] for m in timed),
                processes=job.world_size,
                hours=hours,
                price=None if price is None else hours * price,
            )
        )
    return found


def hour_price() -> float | None:
    """The declared price of an hour of one process.

    Raises:
        InputError: it is set to something that is no number.
    """
    text = os.environ.get(PRICE)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"{PRICE}={text!r}: expected a number, e.g. 2.5; unset it where the price is unknown."
        ) from None
