"""Many canaries in one training: what the number of right guesses says about epsilon.

Place: beside `bounds.py`, for trainings that cannot be repeated. Each of m canaries is in or out by its own fair coin;
the adversary guesses for some of them, a number that is fixed beforehand, and abstains for the rest. Guesses of one
training depend on each other, so no binomial bound holds for them as it stands.

The curve's bound is that of "Auditing f-Differential Privacy in One Run" (2024). In our words: let r_i be the expected
number of right guesses, divided by m, counted only if at least i are right, and h_i that of wrong guesses likewise.
Flip one canary's coin: a right guess with at least i right among the others becomes a wrong one with at least i right
in all. So, for every canary and on average (the curve is concave), r_(i+1) <= reach(h_i), where reach(x) is the largest
true positive rate at the false positive rate x. Suppose c or more of n guesses are right with probability p. From
r_c = p c / m and h_c = p (n - c) / m these inequalities force more and more probability below c, down to i = 0; if that
adds up to more than there is (r_0 + h_0 > n / m), p was impossible.

The plain bound is that of "Privacy Auditing with One (1) Training Run" (2023): under (epsilon, 0) the number of right
guesses is dominated by a binomial with e^epsilon / (1 + e^epsilon), and delta adds 2 m delta times the steepest rise of
its tail.

Guarantees (tests of the same name):
  curve_bound_holds_for_randomised_response   never below the exact binomial tail, and near it.
  plain_bound_at_delta_zero_is_binomial       exactly.
  one_run_rarely_errs                         on exact draws, no more often than alpha says.
  one_run_sees_missing_noise                  a fifth of it, at 1,000 canaries.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
from scipy import stats

from gdpfed.audit.bounds import AuditFinding, noise_left
from gdpfed.audit.privacy_curves import BoolArray, CurveFamily, FloatArray, PrivacyCurve
from gdpfed.errors import InputError

__all__ = ["OneRunFinding", "curve_rules_out", "judge_one_run", "plain_p_value"]

# Guesses made, as fractions of the canaries: half of them "in" and half "out", or all "in". The best is taken, and paid
# for.
_GUESSED_BOTH, _GUESSED_IN = (0.1, 0.3, 1.0), (0.03, 0.1, 0.3)


@dataclass(frozen=True, kw_only=True)
class OneRunFinding(AuditFinding):
    """By one training, with the guesses that said the most about the curve."""

    num_canaries: int
    num_guesses: int
    num_right: int
    alpha: float


@dataclass(frozen=True, kw_only=True)
class _Guesses:
    num_canaries: int
    num_guesses: int
    num_right: int

    @property
    def excess(self) -> float:
        """Of right guesses over what coins would give, in stds."""
        return (2 * self.num_right - self.num_guesses) / math.sqrt(self.num_guesses)


def plain_p_value(*, num_canaries: int, num_guesses: int, num_right: int, epsilon: float, delta: float) -> float:
    """A bound on the probability of so many right guesses or more under (epsilon, delta)."""
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(num_right - 1, num_guesses, chance))
    if delta == 0 or num_right == 0:
        return min(tail, 1.0)
    fewer = np.arange(1, num_right + 1)
    rises = (stats.binom.sf(num_right - fewer - 1, num_guesses, chance) - tail) / fewer
    return min(tail + 2 * num_canaries * delta * float(rises.max()), 1.0)


def curve_rules_out(
    curve: PrivacyCurve, *, num_canaries: int, num_guesses: int, num_right: int, probability: float
) -> bool:
    """Whether under this curve so many right guesses or more have less than this probability."""
    right = probability * num_right / num_canaries
    wrong = probability * (num_guesses - num_right) / num_canaries
    whole = num_guesses / num_canaries
    for fewer in range(num_right - 1, -1, -1):
        least = max(wrong, float(curve.least_false_positives(right)))
        if least == wrong:
            break
        right = min(right + fewer / (num_guesses - fewer) * (least - wrong), 1.0)
        wrong = least
        if right + wrong > whole:
            return True
    return right + wrong > whole


def _all_guesses(scores: FloatArray, inside: BoolArray) -> list[_Guesses]:
    """For each number of guesses, in and out by the extremes of the scores, and only in by the largest."""
    ranked = inside[np.argsort(-scores, kind="stable")]
    halves = [max(1, round(fraction * len(scores) / 2)) for fraction in _GUESSED_BOTH]
    counts = [max(2, round(fraction * len(scores))) for fraction in _GUESSED_IN]
    guessed = [(2 * half, ranked[:half].sum() + (~ranked[-half:]).sum()) for half in halves]
    guessed += [(count, ranked[:count].sum()) for count in counts]
    return [_Guesses(num_canaries=len(scores), num_guesses=total, num_right=int(right)) for total, right in guessed]


def judge_one_run(
    scores: FloatArray, inside: BoolArray, family: CurveFamily, *, claim: float, delta: float, alpha: float
) -> OneRunFinding:
    """Both bounds over all numbers of guesses; wrong with probability alpha at most."""
    if len(scores) < 20:
        raise InputError(f"expected 20 canaries or more, got {len(scores)}: fewer cannot show anything")
    choices = _all_guesses(scores, inside)
    each = alpha / (2 * len(choices))

    def ruled_out(fraction: float) -> list[_Guesses]:
        curve = family.curve(fraction)
        return [
            guesses
            for guesses in choices
            if guesses.excess > 0 and curve_rules_out(curve, **asdict(guesses), probability=each)
        ]

    noise = noise_left(lambda fraction: bool(ruled_out(fraction)))
    telling = max(choices, key=lambda guesses: guesses.excess) if noise is None else ruled_out(noise)[0]
    return OneRunFinding(
        claim=claim,
        epsilon_lower=max(_plain_epsilon(guesses, delta=delta, alpha=each) for guesses in choices),
        curve_claim=family.epsilon(1.0),
        curve_lower=family.epsilon(noise) if noise is not None else 0.0,
        noise_at_most=noise,
        curve_contradicted=bool(ruled_out(1.0)),
        **asdict(telling),
        alpha=alpha,
    )


def _plain_epsilon(guesses: _Guesses, *, delta: float, alpha: float) -> float:
    """The largest epsilon that so many right guesses refute."""

    def is_refuted(epsilon: float) -> bool:
        return plain_p_value(**asdict(guesses), epsilon=epsilon, delta=delta) < alpha

    low, high = 0.0, 20.0
    if not is_refuted(low):
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
