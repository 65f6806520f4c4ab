"""Standard errors from the per-sample values, without the minutes that a bootstrap of a perplexity takes.

A mean has the usual one. A perplexity is a function of a ratio of sums, R = sum(ll) / sum(w), over documents that weigh
differently; its standard error follows by linearisation (Cochran, Sampling Techniques, 3rd ed., section 6.4):
    se(R)^2 = n / (n - 1) * sum((ll_i - R w_i)^2) / sum(w)^2
    perplexity = exp(-R)            se = perplexity * se(R)
    bits per byte = -R / ln 2       se = se(R) / ln 2
Anything else has none unless a bootstrap is asked for, and that draws all resamples at once where it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_NUMBERS_AT_ONCE = 1 << 22  # 32 MB of resampled values
_FEW = 4  # different samples, up to which resamples are counts

RATIO_METRICS = frozenset({"word_perplexity", "byte_perplexity", "bits_per_byte", "token_perplexity"})
"""Their per-sample values are (log-likelihood in nats, weight in words, bytes or tokens)."""


def ratio(values: Sequence[tuple[float, float]]) -> tuple[float, float | None]:
    """R and its standard error for per-sample (log-likelihood, weight); None for fewer than two samples."""
    pairs = np.asarray(values, dtype=np.float64)
    likelihoods, weights = pairs[:, 0], pairs[:, 1]
    estimate = likelihoods.sum() / weights.sum()
    count = len(pairs)
    if count < 2:
        return float(estimate), None
    squares = ((likelihoods - estimate * weights) ** 2).sum()
    return float(estimate), math.sqrt(count / (count - 1) * squares) / float(weights.sum())


def perplexity(values: Sequence[tuple[float, float]]) -> tuple[float, float | None]:
    """exp(-R) and its standard error."""
    estimate, error = ratio(values)
    try:
        value = math.exp(-estimate)
    except OverflowError:  # more than 709 nats a token
        value = math.inf
    return value, None if error is None else value * error


def standard_error(
    metric: str,
    value: float,
    samples: Sequence[Any],
    *,
    aggregate: Callable[[Sequence[Any]], float] | None = None,
    iterations: int = 0,
    seed: int = 0,
) -> float | None:
    """Standard error of a metric.

    Args:
        metric: its name in lm-eval.
        value: the aggregated value.
        samples: per-sample values.
        aggregate: the metric's aggregation, needed for a bootstrap.
        iterations: resamples, where there is no closed form; 0 for None instead.
        seed: of the resampling.
    """
    count = len(samples)
    if count < 2:
        return None
    if metric in RATIO_METRICS:
        _, error = ratio(samples)
        if error is None:
            return None
        return error / math.log(2) if metric == "bits_per_byte" else value * error
    if all(isinstance(sample, (int, float, np.number)) for sample in samples):
        numbers = np.asarray(samples, dtype=np.float64)
        error = float(numbers.std(ddof=1)) / math.sqrt(count)
        if math.isclose(numbers.mean(), value, rel_tol=1e-9, abs_tol=1e-12):
            return error
        if metric == "perplexity" and math.isclose(math.exp(-numbers.mean()), value, rel_tol=1e-9):
            return value * error
    if aggregate is None or iterations == 0:
        return None
    return _bootstrap(samples, aggregate, iterations, np.random.default_rng(seed))


def _bootstrap(
    samples: Sequence[Any], aggregate: Callable[[Sequence[Any]], float], iterations: int, generator: np.random.Generator
) -> float:
    """Standard deviation of the metric over resamples of the documents.

    A metric of classes (F1, MCC) depends on how often each different sample occurs, and there are few different ones; a
    median is taken of all resamples at once. What is left takes one call a resample.
    """
    count = len(samples)
    if getattr(aggregate, "__name__", "") == "median" and all(isinstance(s, (int, float, np.number)) for s in samples):
        numbers = np.asarray(samples, dtype=np.float64)
        rows = max(1, _NUMBERS_AT_ONCE // count)
        medians = [
            np.median(numbers[generator.integers(0, count, (min(rows, iterations - done), count))], axis=1)
            for done in range(0, iterations, rows)
        ]
        return float(np.concatenate(medians).std(ddof=1))
    try:
        kinds = sorted(set(samples))
    except TypeError:  # lists, or values that do not compare
        kinds = list(samples)
    if len(kinds) > _FEW:
        resampled = [aggregate([samples[i] for i in generator.integers(0, count, count)]) for _ in range(iterations)]
        return float(np.std(resampled, ddof=1))
    shares = np.array([sum(sample == kind for sample in samples) for kind in kinds]) / count
    draws, times = np.unique(generator.multinomial(count, shares, iterations), axis=0, return_counts=True)
    values = [aggregate([kind for kind, n in zip(kinds, draw, strict=True) for _ in range(n)]) for draw in draws]
    mean = np.average(values, weights=times)
    variance = np.average((np.asarray(values) - mean) ** 2, weights=times) * iterations / (iterations - 1)
    return math.sqrt(float(variance))
