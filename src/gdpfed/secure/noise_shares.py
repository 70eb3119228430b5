"""How much noise each client adds, so that enough is left when some vanish and others tell the server their shares.

Place: after the roster is known, before an update is masked: shares are sized here, and drawn and added in `client.py`
(`SecureClient.mask`). Every client of a cohort adds a discrete Gaussian share of
variance V = ceil(total / (cohort - tolerated dropouts - tolerated colluders)). Whatever is unmasked has at least
cohort - dropouts shares, of which the server knows at most as many as there are colluders: the rest sums to at least
the total. The total is the planned variance on the grid plus 25:

The sum of the shares, judged as a continuous Gaussian. Write eta^2 = 25 and s^2 for the sum's variance.
  1. A sum of n discrete Gaussians of variance V is pointwise within exp(+-5 (n - 1) exp(-pi^2 V)) of the discrete
     Gaussian of variance s^2 = n V (Kairouz, Liu, Steinke 2021, for two; then one by one).
  2. That one is pointwise within exp(+-5 exp(-2 pi^2 eta^2)) of a randomised rounding of the *continuous* Gaussian of
     variance s^2 - eta^2: round y to a discrete Gaussian of variance eta^2 around y. (The rounding's normaliser is
     sqrt(2 pi) eta (1 +- 2.01 exp(-2 pi^2 eta^2)) for every y, by Poisson summation; the two Gaussians convolve.)
  3. Rounding is post-processing. So every epsilon of the continuous Gaussian of variance s^2 - 25, by any accountant,
     sampled or not, holds for what is released, but for a pure loss of 2 d times those two exponents, which
     `log_extra_loss` bounds. With V >= 100 it is below 1e-200 for any model, and refused above 1e-30.
Truncation to the grid and arithmetic mod 2^32 come before and after the noise, and cost nothing.

The sampled Gaussian of those who only see models has one more premise: the same noise whoever was sampled. The shares
of n clients sum to n V, which tells n: a ratio of n / (n - dropouts - colluders) is read off a million coordinates to
0.2 %. With n known a client takes another's place, as in a cohort of fixed size, and moves the sum by 2 C. So the
server adds noise of its own to what it releases, until the variance is `released_variance` for every cohort and every
number of survivors, the empty cohort's too. It counts for nothing against the server, and needs not to.

Guarantees (tests of the same name):
  noise_suffices_after_every_tolerated_loss   dropouts and colluders together.
  one_client_carries_all                      a cohort of one adds the whole noise.
  small_shares_are_refused                    where a sum of discrete Gaussians is no longer one.
  extra_loss_is_a_bound                       against convolutions computed number by number.
  released_variance_is_enough_for_every_cohort   something is left for the server to add, whoever survives.
  quantiles_are_those_of_scipy                of the binomial distribution, for all sizes of cohorts and rates.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from gdpfed.errors import InputError, PrivacyError
from gdpfed.secure.defaults import COMPLETE_UP_TO
from gdpfed.secure.discrete_gaussian import LARGEST_VARIANCE, SMALLEST_VARIANCE

__all__ = [
    "ROUNDING_VARIANCE", "NoiseShare", "Tolerance", "excess", "log_extra_loss", "noise_share", "released_variance",
]  # fmt: skip

# eta^2 above, in grid steps squared.
ROUNDING_VARIANCE = 25
SMALLEST_SHARE_STD = 10
_LARGEST_LOG_LOSS = math.log(1e-30)
# What rounding may add up to: a share that is met to the digit (one of 20, with a rate of 0.05) is met.
_TIE = 1e-13


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What a cohort must stand.

    ``dropout_rate``: the probability that a client vanishes after its cohort is fixed. The tolerated number is such
    that a cohort aborts with probability ``abort_rate`` at most, if it can be. ``colluding_fraction``: of each cohort,
    rounded up, these may tell the server all they know; the noise is sized without theirs. Up to ``complete_up_to``
    clients everyone is everyone's neighbour (`graph`).
    """

    dropout_rate: float = 0.0
    colluding_fraction: float = 0.0
    abort_rate: float = 0.05
    complete_up_to: int = COMPLETE_UP_TO

    def __post_init__(self) -> None:
        for name in ("dropout_rate", "colluding_fraction"):
            value = getattr(self, name)
            if not 0 <= value < 0.5:
                raise InputError(f"expected 0 <= {name} < 0.5, got {name}={value}: half a cohort cannot be lost")
        if not 0 < self.abort_rate < 1:
            raise InputError(f"expected 0 < abort_rate < 1, got abort_rate={self.abort_rate}")
        if self.complete_up_to < 1:
            raise InputError(f"expected complete_up_to >= 1, got complete_up_to={self.complete_up_to}")

    def colluders(self, cohort: int) -> int:
        """At least one honest client is left."""
        return min(math.ceil(self.colluding_fraction * cohort), cohort - 1)

    def liars(self, cohort: int) -> int:
        """How many clients the protocol stands that say anything to anybody: the colluders, and always one at least.

        Where noise is sized for none, one colluder costs its own noise share, and not both secrets of another client.
        """
        return min(max(1, self.colluders(cohort)), cohort - 1)

    def quorum(self, cohort: int) -> int:
        """More than (cohort + liars) / 2: two quorums have an honest client in common, which signs one set only."""
        return (cohort + self.liars(cohort)) // 2 + 1

    def dropouts(self, cohort: int) -> int:
        """How many may vanish; always so few that a quorum is left."""
        if self.dropout_rate == 0:
            return 0
        # For more cohorts than this one, so that those of other sizes need not be computed again.
        quantiles = _binomial_quantiles(1 - self.abort_rate, 1 << cohort.bit_length(), self.dropout_rate)
        return min(quantiles[cohort - 1], cohort - self.quorum(cohort))


@functools.lru_cache(maxsize=64)
def _binomial_quantiles(share: float, largest: int, rate: float) -> list[int]:
    """Of 1, 2, ... ``largest`` trials: the smallest count with at least ``share`` of the probability below or at it.

    One trial more moves a quantile by 0 or 1, so that all of them take one walk over (trials, count), with the
    probabilities of the count and of all up to it at hand. Not by scipy: a node, which starts a process for each
    message, would spend most of its time on importing it.
    """
    enough = share - _TIE
    odds = rate / (1 - rate)
    quantiles = []
    count, at, below_or_at = 0, 1.0, 1.0
    for trials in range(1, largest + 1):
        below_or_at -= rate * at
        at *= trials * (1 - rate) / (trials - count)
        while below_or_at < enough and count < trials:
            at *= (trials - count) / (count + 1) * odds
            count += 1
            below_or_at += at
        quantiles.append(count)
    return quantiles


@functools.lru_cache(maxsize=256)
def excess(tolerance: Tolerance, largest_cohort: int, smallest_cohort: int = 1) -> Fraction:
    """The largest ratio of noise variance with nobody lost to that planned, over cohorts of these sizes."""
    cohorts = range(smallest_cohort, largest_cohort + 1)
    left = [cohort - tolerance.dropouts(cohort) - tolerance.colluders(cohort) for cohort in cohorts]
    cohort, guaranteed = max(zip(cohorts, left, strict=True), key=lambda pair: pair[0] / pair[1])
    return Fraction(cohort, guaranteed)


@dataclass(frozen=True, kw_only=True)
class NoiseShare:
    """The size of each client's share in one cohort, and what it was sized for."""

    cohort: int
    dropouts: int
    colluders: int
    variance: int

    def __post_init__(self) -> None:
        if self.guaranteed_shares < 1:
            lost = f"{self.dropouts} tolerated dropouts and {self.colluders} colluders"
            raise PrivacyError(f"expected an honest survivor in a cohort of {self.cohort}, got {lost}")

    @property
    def smallest_survivors(self) -> int:
        """With fewer nothing is unmasked."""
        return self.cohort - self.dropouts

    @property
    def guaranteed_shares(self) -> int:
        """Shares in the smallest sum that the server cannot know."""
        return self.cohort - self.dropouts - self.colluders


def noise_share(*, total_variance: int, cohort: int, tolerance: Tolerance, num_params: int) -> NoiseShare:
    """Sizes the shares of a cohort; ``total_variance`` is `encoding.PlannedSum.noise_variance`."""
    if cohort < 1:
        raise InputError(f"expected a cohort of 1 or more, got {cohort}: the server draws the noise of an empty one")
    dropouts, colluders = tolerance.dropouts(cohort), tolerance.colluders(cohort)
    share = NoiseShare(
        cohort=cohort,
        dropouts=dropouts,
        colluders=colluders,
        variance=-(-total_variance // (cohort - dropouts - colluders)),
    )
    if share.variance < SMALLEST_SHARE_STD**2:
        std = f"{math.sqrt(share.variance):.3g}: use a finer grid or more noise"
        raise PrivacyError(f"expected shares of std >= {SMALLEST_SHARE_STD} grid steps, got {std}")
    if share.variance > LARGEST_VARIANCE:
        raise InputError("expected shares of std <= 2^28 grid steps: use a coarser grid")
    if log_extra_loss(share_variance=share.variance, num_shares=cohort, num_params=num_params) > _LARGEST_LOG_LOSS:
        raise PrivacyError("the sum of the noise shares is too far from a Gaussian: use a finer grid or more noise")
    return share


def released_variance(
    *, total_variance: int, largest_cohort: int, tolerance: Tolerance, smallest_cohort: int = 1
) -> int:
    """Of the noise in what is released: the most that a cohort's shares sum to, and a little for the server to add."""
    # Each share is rounded up, by less than 1.
    most = math.ceil(total_variance * excess(tolerance, largest_cohort, smallest_cohort)) + largest_cohort
    return most + SMALLEST_VARIANCE


def log_extra_loss(
    *, share_variance: float, num_shares: int, num_params: int, rounding_variance: float = ROUNDING_VARIANCE
) -> float:
    """Natural logarithm of the pure epsilon that a round costs beyond the continuous Gaussian's."""
    convolution = math.log(5 * (num_shares - 1)) - math.pi**2 * share_variance if num_shares > 1 else -math.inf
    rounding = math.log(5) - 2 * math.pi**2 * rounding_variance
    larger, smaller = max(convolution, rounding), min(convolution, rounding)
    return math.log(2 * num_params) + larger + math.log1p(math.exp(smaller - larger))
