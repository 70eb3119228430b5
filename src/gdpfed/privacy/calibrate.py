"""The accountant, inverted: the smallest noise, the largest rate, the most rounds that a budget allows.

Place: between the accountant and the planner. Each function returns a value whose epsilon, as `epsilon_of` reports it,
is at most the budget, and next to which there is no room: 0.5 % less noise would exceed it (the search itself stops at
one part in a million).

How it is fast: the composed delta is nearly a straight line in the logarithms, and its discretisation error is nearly
quadratic in the grid. So the root is found on a coarse grid (milliseconds), moved to where the fine grid must have it,
and confirmed there by one or two fine evaluations, instead of fifteen.

Guarantees (tests of the same name):
  never_exceeds_the_budget     epsilon_of(calibrated) <= epsilon, without tolerance.
  leaves_no_room               0.5 % less noise, 0.5 % more rate or one more round exceeds it.
  vacuous_delta_is_refused     a delta near the probability of taking part at all raises PrivacyError.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from gdpfed.errors import PrivacyError, expect
from gdpfed.privacy.accountant import (
    COARSE_RELATIVE_ERROR,
    MAX_ROUNDS,
    Accountant,
    SampledGaussian,
    check_accountant,
    check_delta,
    check_promises_something,
    delta_after_rounding,
    epsilon_of,
    grid_interval,
    rough_rdp_epsilon,
)
from gdpfed.privacy.cache import remembered
from gdpfed.privacy.rounding import allowance

__all__ = [
    "check_epsilon",
    "most_allowed",
    "noise_multiplier_for",
    "num_rounds_for",
    "rough_noise_multiplier",
    "rough_sampling_rate",
    "sampling_rate_for",
]

_NOISE_RANGE = (0.02, 1e6)
_MAX_EPSILON = 1e6
_SMALLEST_RATE = 1e-9
# Where the search stops, relative to the parameter, and how far on the safe side of the root it aims.
_TOLERANCE, _MARGIN = 1e-6, 3e-7


def check_epsilon(epsilon: float, *, field: str = "epsilon") -> float:
    """Returns ``epsilon`` if it is a finite number above 0, and its inverse too."""
    expect(1e-300 < epsilon <= _MAX_EPSILON, f"a finite {field} > 0, at most {_MAX_EPSILON:g}", **{field: epsilon})
    return float(epsilon)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """A budget, and the mechanisms among which the one that just keeps it is sought.

    x is the logarithm of the noise or of the rate; ``safe_side`` is +1 where a larger one costs less, else -1.
    """

    mechanism: Callable[[float], SampledGaussian]
    guess: float
    low: float
    high: float
    safe_side: int
    epsilon: float
    delta: float
    accountant: Accountant

    def exact(self) -> float | None:
        """The x at which the mechanism just keeps the budget, approached from the safe side; None if there is none."""
        if self.accountant == "pld" and self.mechanism(self.high).sampling_rate < 1:
            found = self._rough_pld()
            if found is None:
                return None
            x, slope = found
            interval = grid_interval(self.epsilon, self.mechanism(x).num_rounds)
            for _ in range(8):
                x += self.safe_side * _MARGIN
                gap = self._gap(x, interval, both=True)
                if -_TOLERANCE <= gap / abs(slope) <= 0:
                    break
                x -= gap / slope
        else:
            found = self._root(lambda x: self._excess(self._spent(x)), tolerance=_MARGIN)
            if found is None:
                return None
            x = found[0] + self.safe_side * _MARGIN
        step = _MARGIN
        while self._spent(min(max(x, self.low), self.high)) > self.epsilon:
            x += self.safe_side * step
            step *= 2
            if step > 1:
                return None
        return min(max(x, self.low), self.high)

    def rough(self) -> float | None:
        """About that x: to 1e-4 by PLD, to some per mille by RDP; None where a full search is called for."""
        if self.mechanism(self.high).sampling_rate == 1:
            return None
        if self.accountant == "pld":
            found = self._rough_pld()
        else:
            found = self._root(
                lambda x: self._excess(rough_rdp_epsilon(self.mechanism(x), delta=self.delta)), tolerance=1e-5
            )
        return None if found is None else found[0]

    def _spent(self, x: float) -> float:
        return epsilon_of(self.mechanism(x), delta=self.delta, accountant=self.accountant)

    def _excess(self, spent: float) -> float:
        return math.log(min(max(spent, 1e-300), 1e300)) - math.log(self.epsilon)

    def _gap(self, x: float, interval: float, *, both: bool = False) -> float:
        """log(delta at the epsilon) - log(the delta), on a PLD grid: negative where the budget is kept."""
        mechanism = self.mechanism(x)
        allowed = delta_after_rounding(self.delta, mechanism.num_rounds)
        if allowed == 0:
            return 1e3
        from gdpfed.privacy import pld

        build = pld.composed_distribution if both else pld.composed_remove
        composed = build(**vars(mechanism), grid_interval=interval)
        spent = float(composed.get_delta_for_epsilon(self.epsilon))
        # Where the computation broke down, nothing is kept.
        return 1e3 if math.isnan(spent) else math.log(max(spent, 1e-300)) - math.log(allowed)

    def _rough_pld(self) -> tuple[float, float] | None:
        """x to about 1e-5, from coarse grids, and the slope there."""
        num_rounds = self.mechanism(self.guess).num_rounds
        interval = grid_interval(self.epsilon, num_rounds, COARSE_RELATIVE_ERROR)
        found = self._root(lambda x: self._gap(x, interval), tolerance=1e-4)
        if found is None:
            return None
        root, slope = found
        if not (math.isfinite(slope) and slope):
            return None
        wide = root - self._gap(root, interval) / slope
        narrow = wide - self._gap(wide, interval / 2) / slope
        # The discretisation error is quadratic in the interval: Richardson's extrapolation to a fine one.
        fine = grid_interval(self.epsilon, num_rounds)
        return narrow - (wide - narrow) / 3 * (1 - (2 * fine / interval) ** 2), slope

    def _root(self, function: Callable[[float], float], *, tolerance: float) -> tuple[float, float] | None:
        """Root and slope of a monotone function near the guess; None if it has none between the bounds."""
        seen: dict[float, float] = {}

        def known(x: float) -> float:
            if x not in seen:
                seen[x] = function(x)
            return seen[x]

        near = min(max(self.guess, self.low), self.high)
        upwards = (known(near) < 0) == (self.safe_side < 0)
        step, far = 0.1, near
        while known(far) * known(near) > 0:
            near, limit = far, self.high if upwards else self.low
            if near == limit:
                return None
            far = min(near + step, limit) if upwards else max(near - step, limit)
            step *= 2
        if near == far:
            far = near + (1e-3 if upwards else -1e-3)
            return near, (known(far) - known(near)) / (far - near)
        from scipy import optimize

        root = float(optimize.brentq(known, near, far, xtol=tolerance, rtol=1e-12))
        one, other = sorted(seen, key=lambda x: abs(x - root))[:2]
        return root, (known(other) - known(one)) / (other - one)


@functools.lru_cache(maxsize=256)
def _gaussian_limit(*, epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon and delta: many small rounds look like it (central limit)."""
    import dp_accounting

    return 1 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def _search_noise(
    *, epsilon: float, delta: float, sampling_rate: float, num_rounds: int, accountant: Accountant
) -> _Search:
    mu = _gaussian_limit(epsilon=epsilon, delta=delta)
    return _Search(
        mechanism=lambda log_noise: SampledGaussian(
            noise_multiplier=math.exp(log_noise), sampling_rate=sampling_rate, num_rounds=num_rounds
        ),
        guess=-0.5 * math.log(math.log1p((mu / sampling_rate) ** 2 / num_rounds)),
        low=math.log(_NOISE_RANGE[0]),
        high=math.log(_NOISE_RANGE[1]),
        safe_side=+1,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )


def _search_rate(
    *, noise_multiplier: float, epsilon: float, delta: float, num_rounds: int, accountant: Accountant
) -> _Search | None:
    """None where taking part in every round is within the budget."""
    everyone = SampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=1.0, num_rounds=num_rounds)
    if epsilon_of(everyone, delta=delta, accountant=accountant) <= epsilon:
        return None
    mu = _gaussian_limit(epsilon=epsilon, delta=delta)
    exponent = min(noise_multiplier**-2, 500.0)
    return _Search(
        mechanism=lambda log_rate: SampledGaussian(
            noise_multiplier=noise_multiplier, sampling_rate=min(math.exp(log_rate), 1.0), num_rounds=num_rounds
        ),
        guess=math.log(mu) - 0.5 * (math.log(num_rounds) + math.log(math.expm1(exponent))),
        low=math.log(_SMALLEST_RATE),
        high=-1e-9,
        safe_side=-1,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )


@remembered
def noise_multiplier_for(
    *, epsilon: float, delta: float, sampling_rate: float, num_rounds: int, accountant: Accountant = "pld"
) -> float:
    """The smallest noise multiplier that keeps ``num_rounds`` rounds at ``sampling_rate`` within (``epsilon``,
    ``delta``)."""
    check_epsilon(epsilon)
    check_delta(delta)
    SampledGaussian(noise_multiplier=1.0, sampling_rate=sampling_rate, num_rounds=num_rounds)
    expect(sampling_rate > 0, "sampling_rate > 0", sampling_rate="0: a group that never takes part needs no noise")
    check_promises_something(delta=delta, sampling_rates=[sampling_rate], num_rounds=num_rounds)
    check_accountant(accountant)
    found = _search_noise(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, num_rounds=num_rounds, accountant=accountant
    ).exact()
    if found is None:
        raise PrivacyError(
            f"no noise multiplier between {_NOISE_RANGE[0]:g} and {_NOISE_RANGE[1]:g} meets "
            f"epsilon={allowance(epsilon)} at delta={allowance(delta)} over {num_rounds} rounds at sampling rate "
            f"{sampling_rate:.4g} ({accountant}): epsilon or delta is out of range (PLD resolves no delta below about "
            f"1e-16 for each round); change them, the rounds or the rate"
        )
    return math.exp(found)


@remembered
def sampling_rate_for(
    *, noise_multiplier: float, epsilon: float, delta: float, num_rounds: int, accountant: Accountant = "pld"
) -> float:
    """The largest sampling rate (at most 1) at which ``noise_multiplier`` keeps ``num_rounds`` rounds within the
    budget."""
    check_epsilon(epsilon)
    check_delta(delta)
    SampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=1.0, num_rounds=num_rounds)
    smallest = _NOISE_RANGE[0]
    expect(noise_multiplier >= smallest, f"noise_multiplier >= {smallest}", noise_multiplier=noise_multiplier)
    check_accountant(accountant)
    search = _search_rate(
        noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, num_rounds=num_rounds, accountant=accountant
    )
    if search is None:
        return 1.0
    found = search.exact()
    if found is None:
        raise PrivacyError(
            f"no sampling rate above {_SMALLEST_RATE:g} meets epsilon={allowance(epsilon)} at delta={allowance(delta)} "
            f"with noise multiplier {noise_multiplier:.4g} over {num_rounds} rounds ({accountant}): raise the noise, "
            f"epsilon or delta, or lower the rounds"
        )
    check_promises_something(delta=delta, sampling_rates=[math.exp(found)], num_rounds=num_rounds)
    return math.exp(found)


def num_rounds_for(
    *, noise_multiplier: float, sampling_rate: float, epsilon: float, delta: float, accountant: Accountant = "pld"
) -> int:
    """The most rounds that the budget allows, 0 if not even one; at most ``MAX_ROUNDS``."""
    check_epsilon(epsilon)
    check_accountant(accountant)

    def allowed(num_rounds: int) -> bool:
        mechanism = SampledGaussian(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_rounds=num_rounds
        )
        return epsilon_of(mechanism, delta=delta, accountant=accountant) <= epsilon

    most = most_allowed(allowed, limit=MAX_ROUNDS)
    if most:
        check_promises_something(delta=delta, sampling_rates=[sampling_rate], num_rounds=most)
    return most


def most_allowed(allowed: Callable[[int], bool], *, limit: int) -> int:
    """The largest number up to ``limit`` that is allowed, 0 if not even 1 is; all below an allowed one must be."""
    most, too_many = 0, 1
    while allowed(too_many):
        if too_many == limit:
            return limit
        most, too_many = too_many, min(too_many * 2, limit)
    while too_many - most > 1:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if allowed(middle) else (most, middle)
    return most


@remembered
def rough_noise_multiplier(
    *, epsilon: float, delta: float, sampling_rate: float, num_rounds: int, accountant: Accountant
) -> float:
    """About the noise multiplier, quickly, for choosing groups and rates; never for a mechanism that runs."""
    found = _search_noise(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, num_rounds=num_rounds, accountant=accountant
    ).rough()
    if found is not None:
        return math.exp(found)
    return noise_multiplier_for(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, num_rounds=num_rounds, accountant=accountant
    )


@remembered
def rough_sampling_rate(
    *, noise_multiplier: float, epsilon: float, delta: float, num_rounds: int, accountant: Accountant
) -> float:
    """About the sampling rate, quickly, for choosing a common noise; never for a mechanism that runs."""
    search = _search_rate(
        noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, num_rounds=num_rounds, accountant=accountant
    )
    if search is None:
        return 1.0
    found = search.rough()
    if found is not None:
        return math.exp(found)
    return sampling_rate_for(
        noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, num_rounds=num_rounds, accountant=accountant
    )
