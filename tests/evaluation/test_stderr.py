import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pamp_pipelines.evaluation.stderr import perplexity, standard_error


def documents(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """(log-likelihood, words) of documents of very different lengths."""
    random = np.random.default_rng(seed)
    words = random.integers(5, 500, count)
    return [(float(-w * random.normal(4.0, 0.5)), float(w)) for w in words]


@pytest.mark.parametrize("metric", ["word_perplexity", "byte_perplexity", "bits_per_byte"])
def test_closed_form_agrees_with_a_bootstrap(metric):
    samples = documents(400)

    def aggregate(pairs):
        rate = -sum(p[0] for p in pairs) / sum(p[1] for p in pairs)
        return rate / math.log(2) if metric == "bits_per_byte" else math.exp(rate)

    random = np.random.default_rng(1)
    resampled = [aggregate([samples[i] for i in random.integers(0, 400, 400)]) for _ in range(2000)]
    error = standard_error(metric, aggregate(samples), samples)
    assert error == pytest.approx(np.std(resampled), rel=0.06)


def test_perplexity_is_weighted_by_length():
    assert perplexity([(-10.0, 10.0), (-90.0, 30.0)])[0] == pytest.approx(math.exp(100 / 40))


@given(st.lists(st.integers(0, 1), min_size=2, max_size=60))
def test_mean_has_the_usual_error(hits):
    error = standard_error("exact_match", float(np.mean(hits)), hits)
    assert error == pytest.approx(np.std(hits, ddof=1) / math.sqrt(len(hits)), abs=1e-12)


def test_perplexity_of_mean_likelihood_by_linearisation():
    values = list(np.random.default_rng(0).normal(-3, 0.3, 200))
    value = math.exp(-np.mean(values))
    assert standard_error("perplexity", value, values) == pytest.approx(
        value * np.std(values, ddof=1) / math.sqrt(200)
    )  # fmt: skip


def test_other_aggregations_need_a_bootstrap():
    values = [0.0, 0.0, 1.0, 1.0, 1.0, 5.0]
    assert standard_error("median", 1.0, values, aggregate=np.median) is None
    first = standard_error("median", 1.0, values, aggregate=np.median, iterations=500, seed=3)
    assert first is not None
    assert first > 0
    assert first == standard_error("median", 1.0, values, aggregate=np.median, iterations=500, seed=3)


def test_one_sample_has_no_error():
    assert standard_error("exact_match", 1.0, [1]) is None
    assert standard_error("word_perplexity", 5.0, [(-3.0, 2.0)]) is None


def test_the_fast_bootstraps_agree_with_the_plain_one():
    random = np.random.default_rng(1)

    def plain(samples, aggregate):
        picks = (random.integers(0, len(samples), len(samples)) for _ in range(1500))
        return np.std([aggregate([samples[i] for i in p]) for p in picks], ddof=1)

    def median(values):
        return float(np.median(values))

    numbers = [float(x) for x in random.normal(0, 1, 151)]
    error = standard_error("median", median(numbers), numbers, aggregate=median, iterations=20_000)
    assert error == pytest.approx(plain(numbers, median), rel=0.1)

    def f1(pairs):
        hit = sum(gold and said for gold, said in pairs)
        wrong = sum(gold != said for gold, said in pairs)
        return 2 * hit / (2 * hit + wrong) if hit else 0.0

    pairs = [(int(g), int(s)) for g, s in zip(random.random(120) < 0.4, random.random(120) < 0.5, strict=True)]
    error = standard_error("f1", f1(pairs), pairs, aggregate=f1, iterations=5000)
    assert error == pytest.approx(plain(pairs, f1), rel=0.1)


def test_a_hundred_thousand_resamples_of_a_perplexity_cost_nothing():
    values = [float(x) for x in np.random.default_rng(0).normal(-3, 0.3, 5153)]
    value = math.exp(-np.mean(values))
    start = time.process_time()
    error = standard_error("perplexity", value, values, iterations=100_000)
    assert time.process_time() - start < 1, "lm-eval takes 57 CPU seconds"
    assert error == pytest.approx(value * 0.3 / math.sqrt(5153), rel=0.05)
