import math

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
