"""What each training run cost, as far as its metrics say; runs that are still going included."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

from pamp_pipelines.errors import InputError
from pamp_pipelines.training.job import read_job
from pamp_pipelines.training.metrics import read_metrics

PRICE = "PAMP_GPU_HOUR_PRICE"
"""Environment variable: price of an hour of one training process (one GPU), in any currency, over the one that the
profile of a run declares as ``price_per_gpu_hour``."""


@dataclass(frozen=True)
class Cost:
    """Of one run.

    Attributes:
        seconds: spent in iterations; start, validation and saving not counted.
        hours: of all processes together: GPU-hours where each has a GPU.
        price: ``hours`` times the price of one; None where that is not known.
        spent: (iteration, hours until then) of each logged iteration.
        hour_price: of one process.
    """

    run: str
    tokens: int
    seconds: float
    tokens_per_second: float
    processes: int
    hours: float
    price: float | None
    spent: tuple[tuple[int, float], ...]
    hour_price: float | None

    def at(self, step: int) -> tuple[float, float | None]:
        """Hours of all processes until a step, and their price; those of the last logged iteration up to it."""
        place = bisect_right(self.spent, step, key=lambda entry: entry[0])
        hours = self.spent[place - 1][1] if place else 0.0
        return hours, None if self.hour_price is None else hours * self.hour_price


def costs(runs: Mapping[str, Path]) -> list[Cost]:
    """Costs of version directories by name; runs without timings, or with a damaged job, are left out."""
    found = []
    for name, folder in runs.items():
        try:
            job = read_job(folder / "job.json")
        except InputError:
            continue
        timed = [m for m in read_metrics(folder / "metrics.jsonl") if m.get("seconds_per_iteration")]
        if not timed:
            continue
        price = hour_price(folder)
        gaps = [1, *(b["iteration"] - a["iteration"] for a, b in pairwise(timed))]
        until = list(accumulate(m["seconds_per_iteration"] * gap for m, gap in zip(timed, gaps, strict=True)))
        seconds = until[-1]
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
                spent=tuple((m["iteration"], s * job.world_size / 3600) for m, s in zip(timed, until, strict=True)),
                hour_price=price,
            )
        )
    return found


def hour_price(run: Path) -> float | None:
    """The price of an hour of one process of a run: the environment's, else that of the profile it ran with.

    Raises:
        InputError: the environment has something that is no number.
    """
    if text := os.environ.get(PRICE):
        try:
            return float(text)
        except ValueError:
            raise InputError(
                f"{PRICE}={text!r}: expected a number, e.g. 2.5; unset it to take the profile's price_per_gpu_hour."
            ) from None
    try:
        return read_job(run / "job.json").profile.price_per_gpu_hour
    except InputError:
        return None
