"""From scores to statements that are false with a stated probability only.

Place: after the scores, before the report. Every canary has scores, and is in the population or not. One half of the
canaries chooses the score, the direction and the threshold; the other half, which nobody has looked at, is judged by
them: Clopper-Pearson bounds on the true and the false positive rate. Two statements come out:

  epsilon_lower   log((true positives - delta) / false positives): no mechanism with a smaller epsilon at this delta
                  has such a test, whatever it is.
  curve           whether the plan's whole curve (`privacy_curves`) allows such a test, and how much of the planned
                  noise would.

Both hold with probability 1 - alpha together. Both worlds are tried as the positive one: add and remove.

Guarantees (tests of the same name):
  clopper_pearson_covers            the exact probability of a bound that is wrong never exceeds the stated one.
  epsilon_lower_is_below_the_truth  on exact draws of two Gaussians, and near it with many.
  choice_costs_no_confidence        of useless scores without end, the best one still finds nothing.
"""

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from gdpfed.audit.privacy_curves import BoolArray, CurveFamily, FloatArray
from gdpfed.errors import InputError

__all__ = [
    "AuditFinding", "CanaryFinding", "ScoredCanaries", "clopper_pearson", "epsilon_from_rates", "judge", "noise_left",
]  # fmt: skip

# Fractions of the planned noise that are tried, 5 % apart, from a fifth to ten times as much.
_FRACTIONS = tuple(1.05**step for step in range(-33, 49))
_MOST_THRESHOLDS = 300
# Of these, the test is chosen that rules out the smallest one it can.
_CHOOSE_AT = tuple(1.05**step for step in (-14, -7, 0, 1, 2, 4, 6, 9, 15, 30))


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredCanaries:
    """Scores by name, one for each canary; who was ``inside``; whose scores may be looked at to ``choose`` a test."""

    scores: Mapping[str, FloatArray]
    inside: BoolArray
    choose: BoolArray

    def __post_init__(self) -> None:
        for half in (self.choose, ~self.choose):
            if not (half & self.inside).any() or not (half & ~self.inside).any():
                raise InputError("expected canaries inside and outside the population in both halves: use more")


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """What an audit found out about one claim: ``epsilon_lower`` holds for any mechanism. ``noise_at_most`` is the
    largest fraction of the planned noise that the outcome allows, None if it allows any; ``curve_lower`` is the epsilon
    that goes with it."""

    claim: float
    epsilon_lower: float
    curve_claim: float
    curve_lower: float
    noise_at_most: float | None
    curve_contradicted: bool

    @property
    def contradicts(self) -> bool:
        """Whether the claim is false, with confidence 1 - alpha."""
        return self.epsilon_lower > self.claim or self.curve_contradicted

    def as_json(self) -> dict[str, Any]:
        """Ready for json.dumps; an infinite claim is null."""
        content = {**asdict(self), "contradicts": self.contradicts}
        return {name: None if value == math.inf else value for name, value in content.items()}


@dataclass(frozen=True, kw_only=True)
class CanaryFinding(AuditFinding):
    """By independent canaries, with the test that said the most about the curve."""

    score: str
    true_positives: float
    false_positives: float
    num_canaries: int
    alpha: float


@dataclass(frozen=True, kw_only=True)
class _Test:
    """Says "positive" where sign * score >= threshold; positive is the world inside if ``sign`` is 1."""

    score: str
    sign: int
    threshold: float


def clopper_pearson(count: NDArray[Any] | int, total: int, *, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bound on a probability after ``count`` successes, each wrong with probability alpha at most."""
    hits = np.asarray(count, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        lower = np.where(hits > 0, special.betaincinv(np.maximum(hits, 1), total - hits + 1, alpha), 0.0)
        upper = np.where(hits < total, special.betainccinv(hits + 1, np.maximum(total - hits, 1), alpha), 1.0)
    return lower, upper


def epsilon_from_rates(
    true_positives: FloatArray | float, false_positives: FloatArray | float, *, delta: float
) -> FloatArray:
    """The smallest epsilon at ``delta`` of a mechanism with such a test."""
    excess = np.maximum(np.asarray(true_positives) - delta, 1e-300)
    return np.maximum(np.log(excess / np.maximum(false_positives, 1e-300)), 0.0)


def judge(
    canaries: ScoredCanaries,
    family: CurveFamily,
    *,
    claim: float,
    delta: float,
    alpha: float,
    measure_noise: bool = True,
) -> CanaryFinding:
    """Chooses tests on one half of the canaries and judges them on the other; wrong with probability alpha at most."""
    # Two tests, and two rates of each, are bounded.
    each = alpha / 4
    tests, lower, upper = _candidates(canaries, alpha=each)
    by_epsilon = int(np.argmax(epsilon_from_rates(lower, upper, delta=delta) + 1e-9 * (lower - upper)))
    by_curve = _most_telling(family, lower, upper)
    epsilon_lower = float(epsilon_from_rates(**_rates(canaries, tests[by_epsilon], alpha=each), delta=delta))
    rates = _rates(canaries, tests[by_curve], alpha=each)
    noise = noise_left(lambda fraction: not family.curve(fraction).allows(**rates)) if measure_noise else None
    return CanaryFinding(
        claim=claim,
        epsilon_lower=epsilon_lower,
        curve_claim=family.epsilon(1.0),
        curve_lower=family.epsilon(noise) if noise is not None else 0.0,
        noise_at_most=noise,
        curve_contradicted=not family.curve(1.0).allows(**rates),
        score=tests[by_curve].score,
        **rates,
        num_canaries=len(canaries.inside),
        alpha=alpha,
    )


def _candidates(canaries: ScoredCanaries, *, alpha: float) -> tuple[list[_Test], FloatArray, FloatArray]:
    """All tests, and the bounds on their rates if the others, of whom there may be more, are like these."""
    tests: list[_Test] = []
    judging = int((~canaries.choose & canaries.inside).sum()), int((~canaries.choose & ~canaries.inside).sum())
    lower, upper = [], []
    for name, scores in canaries.scores.items():
        for sign in (1, -1):
            positive = np.sort((sign * scores)[canaries.choose & (canaries.inside == (sign == 1))])
            negative = np.sort((sign * scores)[canaries.choose & (canaries.inside != (sign == 1))])
            thresholds = _thresholds(np.concatenate([positive, negative]))
            true = len(positive) - np.searchsorted(positive, thresholds, side="left")
            false = len(negative) - np.searchsorted(negative, thresholds, side="left")
            num_positive, num_negative = judging[::sign]
            lower.append(clopper_pearson(true * (num_positive / len(positive)), num_positive, alpha=alpha)[0])
            upper.append(clopper_pearson(false * (num_negative / len(negative)), num_negative, alpha=alpha)[1])
            tests += [_Test(score=name, sign=sign, threshold=float(threshold)) for threshold in thresholds]
    return tests, np.concatenate(lower), np.concatenate(upper)


def _most_telling(family: CurveFamily, lower: FloatArray, upper: FloatArray) -> int:
    """The test that would rule out the least noise."""
    best = 0
    for fraction in _CHOOSE_AT:
        excess = (family.curve(fraction).least_false_positives(lower) + 1e-12) / upper
        best = int(np.argmax(excess))
        if excess[best] > 1:
            break
    return best


def _thresholds(values: FloatArray) -> FloatArray:
    """Some of the values, close together where few are above."""
    distinct = np.unique(values)[::-1]
    if len(distinct) <= _MOST_THRESHOLDS:
        return distinct
    indices = np.unique(np.geomspace(1, len(distinct), _MOST_THRESHOLDS).astype(np.int64)) - 1
    return distinct[indices]


def _rates(canaries: ScoredCanaries, test: _Test, *, alpha: float) -> dict[str, float]:
    """A lower bound on the true and an upper bound on the false positive rate, from the half that chose nothing."""
    says = (test.sign * canaries.scores[test.score] >= test.threshold)[~canaries.choose]
    is_positive = (canaries.inside == (test.sign == 1))[~canaries.choose]
    lower, _ = clopper_pearson(int(says[is_positive].sum()), int(is_positive.sum()), alpha=alpha)
    _, upper = clopper_pearson(int(says[~is_positive].sum()), int((~is_positive).sum()), alpha=alpha)
    return {"true_positives": float(lower), "false_positives": float(upper)}


def noise_left(ruled_out: Callable[[float], bool]) -> float | None:
    """The smallest fraction of the planned noise that is ruled out, or None; by bisection: more noise allows less."""
    index = bisect.bisect_left(_FRACTIONS, True, key=ruled_out)
    return _FRACTIONS[index] if index < len(_FRACTIONS) else None
