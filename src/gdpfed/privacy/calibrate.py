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

import math
from collections.abc import Callable

from gdpfed.errors import InputError, PrivacyError
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
    "noise_multiplier_for",
    "num_rounds_for",
    "rough_noise_multiplier",
    "rough_sampling_rate",
    "sampling_rate_for",
]

_NOISE_RANGE = (0.02, 1e6)
_MAX_EPSILON = 1e6
_RATE_RANGE = (1e-9, 1.0)
# Where the search stops, relative to the parameter, and how far on the safe side of the root it aims.
_TOLERANCE, _MARGIN = 1e-6, 3e-7


def check_epsilon(epsilon: float, *, field: str = "epsilon") -> float:
    """Returns ``epsilon`` if it is a finite number above 0."""
    if not 0 < epsilon <= _MAX_EPSILON:
        raise InputError(f"expected a finite {field} > 0, at most {_MAX_EPSILON:g}, got {field}={epsilon}")
    return float(epsilon)


def _gap(parameter: SampledGaussian, *, epsilon: float, delta: float, interval: float, both: bool) -> float:
    """log(delta at ``epsilon``) - log(``delta``), on a PLD grid: negative where the budget is kept."""
    allowed = delta_after_rounding(delta, parameter.num_rounds)
    if allowed == 0:
        return 1e3
    from gdpfed.privacy import pld

    build = pld.composed_distribution if both else pld.composed_remove
    composed = build(
        noise_multiplier=parameter.noise_multiplier,
        sampling_rate=parameter.sampling_rate,
        num_rounds=parameter.num_rounds,
        grid_interval=interval,
    )
    return math.log(max(float(composed.get_delta_for_epsilon(epsilon)), 1e-300)) - math.log(allowed)


def _bracketed_root(
    function: Callable[[float], float], guess: float, *, low: float, high: float, rising: bool, tolerance: float
) -> tuple[float, float] | None:
    """Root and slope of a monotone function near ``guess``; None if it has none between ``low`` and ``high``."""
    seen: dict[float, float] = {}

    def known(x: float) -> float:
        if x not in seen:
            seen[x] = function(x)
        return seen[x]

    near = min(max(guess, low), high)
    upwards = (known(near) < 0) == rising
    step, far = 0.1, near
    while known(far) * known(near) > 0:
        near, limit = far, high if upwards else low
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


def _rough_pld(
    mechanism: Callable[[float], SampledGaussian],
    guess: float,
    *,
    low: float,
    high: float,
    epsilon: float,
    delta: float,
    safe_side: int,
) -> tuple[float, float] | None:
    """The logarithm of the calibrated parameter to about 1e-5, from coarse grids, and the slope there."""
    num_rounds = mechanism(guess).num_rounds
    interval = grid_interval(epsilon, num_rounds, COARSE_RELATIVE_ERROR)

    def gap(x: float, grid: float) -> float:
        return _gap(mechanism(x), epsilon=epsilon, delta=delta, interval=grid, both=False)

    found = _bracketed_root(lambda x: gap(x, interval), guess, low=low, high=high, rising=safe_side < 0, tolerance=1e-4)
    if found is None:
        return None
    root, slope = found
    if not (math.isfinite(slope) and slope):
        return None
    wide = root - gap(root, interval) / slope
    narrow = wide - gap(wide, interval / 2) / slope
    # The discretisation error is quadratic in the interval: Richardson's extrapolation to a fine one.
    fine = grid_interval(epsilon, num_rounds)
    return narrow - (wide - narrow) / 3 * (1 - (2 * fine / interval) ** 2), slope


def _solve(
    mechanism: Callable[[float], SampledGaussian],
    guess: float,
    *,
    low: float,
    high: float,
    epsilon: float,
    delta: float,
    accountant: Accountant,
    safe_side: int,
) -> float | None:
    """The logarithm x of a parameter at which ``mechanism(x)`` just keeps the budget, approached from the
    ``safe_side`` (+1 or -1)."""

    def exceeds(x: float) -> bool:
        return epsilon_of(mechanism(x), delta=delta, accountant=accountant) > epsilon

    if accountant == "pld" and mechanism(high).sampling_rate < 1:
        found = _rough_pld(mechanism, guess, low=low, high=high, epsilon=epsilon, delta=delta, safe_side=safe_side)
        if found is None:
            return None
        x, slope = found
        interval = grid_interval(epsilon, mechanism(x).num_rounds)
        for _ in range(8):
            x += safe_side * _MARGIN
            gap = _gap(mechanism(x), epsilon=epsilon, delta=delta, interval=interval, both=True)
            if -_TOLERANCE <= gap / abs(slope) <= 0:
                break
            x -= gap / slope
    else:

        def excess(x: float) -> float:
            spent = epsilon_of(mechanism(x), delta=delta, accountant=accountant)
            return math.log(min(max(spent, 1e-300), 1e300)) - math.log(epsilon)

        found = _bracketed_root(excess, guess, low=low, high=high, rising=safe_side < 0, tolerance=_MARGIN)
        if found is None:
            return None
        x = found[0] + safe_side * _MARGIN
    step = _MARGIN
    while exceeds(min(max(x, low), high)):
        x += safe_side * step
        step *= 2
        if step > 1:
            return None
    return min(max(x, low), high)


def _gaussian_limit(*, epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon and delta: many small rounds look like it (central limit)."""
    import dp_accounting

    return 1 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def _guess_noise(*, epsilon: float, delta: float, sampling_rate: float, num_rounds: int) -> float:
    mu = _gaussian_limit(epsilon=epsilon, delta=delta)
    return -0.5 * math.log(math.log1p((mu / sampling_rate) ** 2 / num_rounds))


def _guess_rate(*, epsilon: float, delta: float, noise_multiplier: float, num_rounds: int) -> float:
    mu = _gaussian_limit(epsilon=epsilon, delta=delta)
    exponent = min(noise_multiplier**-2, 500.0)
    return math.log(mu) - 0.5 * (math.log(num_rounds) + math.log(math.expm1(exponent)))


def _mechanism_of_noise(sampling_rate: float, num_rounds: int) -> Callable[[float], SampledGaussian]:
    return lambda log_noise: SampledGaussian(
        noise_multiplier=math.exp(log_noise), sampling_rate=sampling_rate, num_rounds=num_rounds
    )


def _mechanism_of_rate(noise_multiplier: float, num_rounds: int) -> Callable[[float], SampledGaussian]:
    return lambda log_rate: SampledGaussian(
        noise_multiplier=noise_multiplier, sampling_rate=min(math.exp(log_rate), 1.0), num_rounds=num_rounds
    )


def noise_multiplier_for(
    *, epsilon: float, delta: float, sampling_rate: float, num_rounds: int, accountant: Accountant = "pld"
) -> float:
    """The smallest noise multiplier that keeps ``num_rounds`` rounds at ``sampling_rate`` within (``epsilon``,
    ``delta``)."""
    check_epsilon(epsilon)
    check_delta(delta)
    SampledGaussian(noise_multiplier=1.0, sampling_rate=sampling_rate, num_rounds=num_rounds)
    if sampling_rate == 0:
        raise InputError(
            "expected sampling_rate > 0, got sampling_rate=0: a group that never takes part needs no noise"
        )
    check_promises_something(delta=delta, sampling_rates=[sampling_rate], num_rounds=num_rounds)
    return _noise_multiplier_for(
        epsilon=float(epsilon),
        delta=float(delta),
        sampling_rate=float(sampling_rate),
        num_rounds=int(num_rounds),
        accountant=check_accountant(accountant),
    )


@remembered
def _noise_multiplier_for(
    *, epsilon: float, delta: float, sampling_rate: float, num_rounds: int, accountant: Accountant
) -> float:
    solved = _solve(
        _mechanism_of_noise(sampling_rate, num_rounds),
        _guess_noise(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, num_rounds=num_rounds),
        low=math.log(_NOISE_RANGE[0]),
        high=math.log(_NOISE_RANGE[1]),
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        safe_side=+1,
    )
    if solved is None:
        raise PrivacyError(
            f"no noise multiplier between {_NOISE_RANGE[0]:g} and {_NOISE_RANGE[1]:g} meets epsilon={epsilon:g} at "
            f"delta={allowance(delta)} over {num_rounds} rounds at sampling rate {sampling_rate:.4g} ({accountant}): "
            f"epsilon or delta is out of range (PLD resolves no delta below about 1e-16 for each round): change them, "
            f"the rounds or the rate"
        )
    return math.exp(solved)


def sampling_rate_for(
    *, noise_multiplier: float, epsilon: float, delta: float, num_rounds: int, accountant: Accountant = "pld"
) -> float:
    """The largest sampling rate (at most 1) at which ``noise_multiplier`` keeps ``num_rounds`` rounds within the
    budget."""
    check_epsilon(epsilon)
    check_delta(delta)
    SampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=1.0, num_rounds=num_rounds)
    if noise_multiplier < _NOISE_RANGE[0]:
        raise InputError(f"expected noise_multiplier >= {_NOISE_RANGE[0]}, got noise_multiplier={noise_multiplier}")
    return _sampling_rate_for(
        noise_multiplier=float(noise_multiplier),
        epsilon=float(epsilon),
        delta=float(delta),
        num_rounds=int(num_rounds),
        accountant=check_accountant(accountant),
    )


def _always_taking_part_is_allowed(
    *, noise_multiplier: float, epsilon: float, delta: float, num_rounds: int, accountant: Accountant
) -> bool:
    everyone = SampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=1.0, num_rounds=num_rounds)
    return epsilon_of(everyone, delta=delta, accountant=accountant) <= epsilon


@remembered
def _sampling_rate_for(
    *, noise_multiplier: float, epsilon: float, delta: float, num_rounds: int, accountant: Accountant
) -> float:
    if _always_taking_part_is_allowed(
        noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, num_rounds=num_rounds, accountant=accountant
    ):
        return 1.0
    solved = _solve(
        _mechanism_of_rate(noise_multiplier, num_rounds),
        _guess_rate(epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, num_rounds=num_rounds),
        low=math.log(_RATE_RANGE[0]),
        high=-1e-9,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        safe_side=-1,
    )
    if solved is None:
        raise PrivacyError(
            f"no sampling rate above {_RATE_RANGE[0]:g} meets epsilon={epsilon:g} at delta={allowance(delta)} with "
            f"noise multiplier {noise_multiplier:.4g} over {num_rounds} rounds ({accountant}): raise the "
            f"noise, epsilon or delta, or lower the rounds"
        )
    rate = math.exp(solved)
    check_promises_something(delta=delta, sampling_rates=[rate], num_rounds=num_rounds)
    return rate


def num_rounds_for(
    *, noise_multiplier: float, sampling_rate: float, epsilon: float, delta: float, accountant: Accountant = "pld"
) -> int:
    """The most rounds that the budget allows, 0 if not even one; at most ``MAX_ROUNDS``."""
    check_epsilon(epsilon)
    check_delta(delta)
    check_accountant(accountant)
    most = _most_rounds(noise_multiplier, sampling_rate, epsilon=epsilon, delta=delta, accountant=accountant)
    if most:
        check_promises_something(delta=delta, sampling_rates=[sampling_rate], num_rounds=most)
    return most


def _most_rounds(
    noise_multiplier: float, sampling_rate: float, *, epsilon: float, delta: float, accountant: Accountant
) -> int:

    def allowed(num_rounds: int) -> bool:
        mechanism = SampledGaussian(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_rounds=num_rounds
        )
        return epsilon_of(mechanism, delta=delta, accountant=accountant) <= epsilon

    if not allowed(1):
        return 0
    most, too_many = 1, 2
    while allowed(too_many):
        most, too_many = too_many, too_many * 2
        if too_many > MAX_ROUNDS:
            return MAX_ROUNDS if allowed(MAX_ROUNDS) else _bisected(allowed, most, MAX_ROUNDS)
    return _bisected(allowed, most, too_many)


def _bisected(allowed: Callable[[int], bool], most: int, too_many: int) -> int:
    while too_many - most > 1:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if allowed(middle) else (most, middle)
    return most


def _rough(
    mechanism: Callable[[float], SampledGaussian],
    guess: float,
    *,
    low: float,
    high: float,
    epsilon: float,
    delta: float,
    accountant: Accountant,
    safe_side: int,
) -> float | None:
    """The logarithm of the calibrated parameter: to 1e-4 by PLD, to some per mille by RDP; None where a full search is
    called for."""
    if mechanism(high).sampling_rate == 1:
        return None
    if accountant == "pld":
        found = _rough_pld(mechanism, guess, low=low, high=high, epsilon=epsilon, delta=delta, safe_side=safe_side)
    else:

        def excess(x: float) -> float:
            return math.log(min(max(rough_rdp_epsilon(mechanism(x), delta=delta), 1e-300), 1e300)) - math.log(epsilon)

        found = _bracketed_root(excess, guess, low=low, high=high, rising=safe_side < 0, tolerance=1e-5)
    return None if found is None else found[0]


@remembered
def rough_noise_multiplier(
    *, epsilon: float, delta: float, sampling_rate: float, num_rounds: int, accountant: Accountant
) -> float:
    """About the noise multiplier, quickly, for choosing groups and rates; never for a mechanism that runs."""
    found = _rough(
        _mechanism_of_noise(sampling_rate, num_rounds),
        _guess_noise(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, num_rounds=num_rounds),
        low=math.log(_NOISE_RANGE[0]),
        high=math.log(_NOISE_RANGE[1]),
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        safe_side=+1,
    )
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
    if not _always_taking_part_is_allowed(
        noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, num_rounds=num_rounds, accountant=accountant
    ):
        found = _rough(
            _mechanism_of_rate(noise_multiplier, num_rounds),
            _guess_rate(epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, num_rounds=num_rounds),
            low=math.log(_RATE_RANGE[0]),
            high=-1e-9,
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            safe_side=-1,
        )
        if found is not None:
            return math.exp(found)
    return sampling_rate_for(
        noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, num_rounds=num_rounds, accountant=accountant
    )
