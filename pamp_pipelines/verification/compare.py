"""How far apart two sets of logits are, and whether that is within a tolerance.

Axes: T  positions, V  vocabulary
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.verification.job import Tolerance

LOGITS = "logits_match_hf"
_ROWS = 64
"""Positions compared at once: bounds the float64 copies to 64 rows of the vocabulary."""


@dataclass(frozen=True)
class Difference:
    """What was measured over all positions.

    max_abs_diff, max_abs_logit: of the logits, unitless. top1_agreement: share of positions. max_kl: nats.
    """

    positions: int
    max_abs_diff: float
    max_abs_logit: float
    top1_agreement: float
    max_kl: float


def difference(reference_TV: npt.NDArray[np.float32], other_TV: npt.NDArray[np.float32]) -> Difference:
    """Compares logits in float64, a few positions at a time; NaN and infinity give an infinite difference.

    Args:
        reference_TV: the logits that are right.
        other_TV: those to be judged, of the same shape.
    """
    positions = len(reference_TV)
    largest = scale = divergence = 0.0
    agreements = 0
    for start in range(0, positions, _ROWS):
        reference = reference_TV[start : start + _ROWS].astype(np.float64)
        other = other_TV[start : start + _ROWS].astype(np.float64)
        if not np.isfinite(other).all() or not np.isfinite(reference).all():
            return Difference(positions, float("inf"), scale, 0.0, float("inf"))
        largest = max(largest, float(np.abs(reference - other).max()))
        scale = max(scale, float(np.abs(reference).max()))
        agreements += int((reference.argmax(-1) == other.argmax(-1)).sum())
        log_p, log_q = _log_softmax(reference), _log_softmax(other)
        divergence = max(divergence, float((np.exp(log_p) * (log_p - log_q)).sum(-1).max()))
    return Difference(positions, largest, scale, agreements / positions, divergence)


def logits_verdict(measured: Difference, tolerance: Tolerance, about: dict[str, object]) -> CheckResult:
    """The check `logits_match_hf`.

    Args:
        measured: what came out.
        tolerance: what is allowed.
        about: facts for the reader: layers, tokens.
    """
    limit = tolerance.logits * max(1.0, measured.max_abs_logit)
    wrong = []
    if not measured.max_abs_diff <= limit:
        wrong.append(f"logits differ by {measured.max_abs_diff:.3g}, allowed are {limit:.3g}")
    if not measured.top1_agreement >= tolerance.top1:
        wrong.append(f"top-1 agreement is {measured.top1_agreement:.4f}, needed is {tolerance.top1}")
    if not measured.max_kl <= tolerance.kl:
        wrong.append(f"KL divergence is {measured.max_kl:.3g} nats, allowed are {tolerance.kl:.3g}")
    text = "; ".join(wrong) or (
        f"Megatron's logits agree with HF's at {measured.positions} positions: "
        f"max difference {measured.max_abs_diff:.2g} (allowed {limit:.2g}), top-1 {measured.top1_agreement:.4f}"
    )
    metadata = {**asdict(measured), "allowed_abs_diff": limit, "tolerance": tolerance.model_dump(), **about}
    return CheckResult(name=LOGITS, passed=not wrong, description=text, metadata=_json_able(metadata))


def _json_able(metadata: dict[str, object]) -> dict[str, object]:
    """JSON has no infinity."""
    return {k: (str(v) if isinstance(v, float) and not np.isfinite(v) else v) for k, v in metadata.items()}


def _log_softmax(logits_TV: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits_TV - logits_TV.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
