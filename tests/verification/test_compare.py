"""The measures and the tolerances, on numbers made by hand."""

import numpy as np
import pytest

from pamp_pipelines.verification.compare import LOGITS, Difference, difference, logits_verdict
from pamp_pipelines.verification.job import Tolerance

TOLERANCE = Tolerance(logits=1e-3, top1=0.9, kl=1e-6)


def test_difference_measures_what_its_fields_say() -> None:
    reference = np.array([[1.0, 2.0, 0.0], [0.0, 5.0, 4.9]], np.float32)
    other = np.array([[1.0, 2.0, 0.0], [0.0, 4.9, 5.0]], np.float32)
    measured = difference(reference, other)
    p, q = (np.exp(row) / np.exp(row).sum() for row in (reference[1].astype(float), other[1].astype(float)))
    assert measured.positions == 2
    assert measured.max_abs_diff == pytest.approx(0.1, abs=1e-6)
    assert measured.max_abs_logit == 5.0
    assert measured.top1_agreement == 0.5
    assert measured.max_kl == pytest.approx(float((p * np.log(p / q)).sum()))


def test_the_worst_position_counts_wherever_it_is() -> None:
    reference = np.zeros((1000, 7), np.float32)
    other = reference.copy()
    other[997, 3] = 0.25
    assert difference(reference, other).max_abs_diff == 0.25


def test_a_shift_of_all_logits_changes_no_probability() -> None:
    reference = np.random.default_rng(0).normal(size=(5, 11)).astype(np.float32)
    assert difference(reference, reference + 1).max_kl < 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_not_finite_fails(value: float) -> None:
    reference = np.ones((2, 3), np.float32)
    other = reference.copy()
    other[1, 2] = value
    verdict = logits_verdict(difference(reference, other), TOLERANCE, {})
    assert not verdict.passed
    verdict.model_validate_json(verdict.model_dump_json())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"max_abs_diff": 0.011}, "logits differ by 0.011, allowed are 0.01"),
        ({"top1_agreement": 0.89}, "top-1 agreement is 0.8900"),
        ({"max_kl": 2e-6}, "KL divergence is 2e-06"),
    ],
)
def test_each_measure_is_held_against_its_own_tolerance(change: dict[str, float], words: str) -> None:
    good = {"max_abs_diff": 0.009, "max_abs_logit": 10.0, "top1_agreement": 0.91, "max_kl": 1e-7}
    verdict = logits_verdict(Difference(positions=64, **{**good, **change}), TOLERANCE, {"layers": 2})
    assert verdict.name == LOGITS
    assert verdict.passed == (not change)
    assert words in verdict.description
    assert verdict.metadata["layers"] == 2


def test_small_logits_are_held_to_an_absolute_tolerance() -> None:
    measured = Difference(positions=64, max_abs_diff=5e-4, max_abs_logit=1e-2, top1_agreement=1.0, max_kl=0.0)
    assert logits_verdict(measured, TOLERANCE, {}).passed
