"""How often each group takes part.

Place: after the groups, before the noise. Every rule keeps the expected number of clients in a round, sum_m q_m n_m =
q n, and q_m <= 1.

`uniform`  q_m = q.
`paper`    the minimiser of the paper's Problem 1. With Theorem 1's noise, sigma_m^2 / r_m^2 does not depend on q_m, so
           the optimum is q_m proportional to epsilon_m / sqrt(epsilon_m + 2 log(1/delta)), cut off at 1.
           `reproduce/gdpfed_reproduce/problem_one.py` minimises the paper's objective numerically, and agrees.
`snr`      the largest signal-to-noise under the accountant in use, each q_m at least `fairness_floor` times q.
`sample`   IDP-FedAvg: the largest rate of each group at one common noise multiplier, that multiplier chosen to fill
           the cohort.

Guarantees (tests of the same name):
  cohort_is_kept                 expected cohorts add up to q n.
  rates_never_exceed_one
  equal_budgets_equal_rates
  closed_form_equals_problem_one   to 1e-4 relative, wherever no rate is cut off at 1.
  snr_is_at_least_uniform_and_paper
Theorem 1's noise is never used for a mechanism: its true epsilon can exceed the budget (docs/limits.md).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, expect
from gdpfed.planning.groups import Grouping
from gdpfed.planning.noise_curves import NoiseCurve
from gdpfed.privacy.accountant import Accountant
from gdpfed.privacy.calibrate import rough_noise_multiplier, rough_sampling_rate, sampling_rate_for

__all__ = [
    "largest_rates",
    "paper_rates",
    "sample_rates",
    "snr_rates",
    "uniform_rates",
]

FloatArray = NDArray[np.float64]


def _sizes(groups: Grouping) -> FloatArray:
    return np.array(groups.sizes, dtype=np.float64)


def uniform_rates(groups: Grouping, *, participation: float) -> tuple[float, ...]:
    """The same rate for every group."""
    return (participation,) * len(groups.sizes)


def _water_filled(shares: FloatArray, sizes: FloatArray, *, participation: float) -> tuple[float, ...]:
    """Rates proportional to ``shares``, cut off at 1, with the expected cohort kept."""
    cohort = participation * sizes.sum()
    capped = np.zeros(len(shares), dtype=bool)
    while True:
        free = ~capped
        if not free.any():
            return (1.0,) * len(shares)
        level = (cohort - sizes[capped].sum()) / (shares[free] * sizes[free]).sum()
        rates = np.where(capped, 1.0, level * shares)
        over = free & (rates > 1)
        if not over.any():
            return tuple(float(rate) for rate in rates)
        capped |= over


def paper_rates(groups: Grouping, *, participation: float) -> tuple[float, ...]:
    """The closed form of the paper's optimal sampling ratios."""
    epsilons, deltas = np.array(groups.epsilons), np.array(groups.deltas)
    return _water_filled(
        epsilons / np.sqrt(epsilons + 2 * np.log(1 / deltas)), _sizes(groups), participation=participation
    )


def snr_rates(
    groups: Grouping,
    *,
    participation: float,
    noise_curves: Sequence[NoiseCurve],
    signal_to_noise: Callable[[FloatArray, FloatArray], float],
    fairness_floor: float,
) -> tuple[float, ...]:
    """The rates with the largest ``signal_to_noise(expected cohorts, noise multipliers)``, none below the floor."""
    expect(0 < fairness_floor <= 1, "0 < fairness_floor <= 1", fairness_floor=fairness_floor)
    sizes = _sizes(groups)
    cohort = participation * sizes.sum()
    floor = fairness_floor * participation
    ceilings = largest_rates(groups, participation=participation, fairness_floor=fairness_floor)

    def loss(relative: FloatArray) -> float:
        rates = np.clip(relative * participation, floor, ceilings)
        noise = np.array([float(curve(rate)) for curve, rate in zip(noise_curves, rates, strict=True)])
        return -signal_to_noise(rates * sizes, noise)

    def feasible(rates: FloatArray) -> FloatArray:
        """Brings a start within the floor and the cohort: what lies above the floor is scaled."""
        above = np.clip(rates, floor, ceilings) - floor
        room = cohort - floor * sizes.sum()
        return floor + above * (room / (above * sizes).sum() if above.any() else 0.0)

    from scipy import optimize

    corners = [np.where(np.arange(len(sizes)) == index, ceiling, floor) for index, ceiling in enumerate(ceilings)]
    starts = [
        np.full(len(sizes), participation),
        np.array(paper_rates(groups, participation=participation)),
        *corners,
    ]
    best, best_loss = starts[0], loss(starts[0] / participation)
    for start in starts:
        solution = optimize.minimize(
            loss,
            feasible(start) / participation,
            method="SLSQP",
            bounds=[(floor / participation, ceiling / participation) for ceiling in ceilings],
            constraints={"type": "eq", "fun": lambda relative: (relative * participation * sizes).sum() / cohort - 1},
            options={"ftol": 1e-10, "maxiter": 300},
        )
        rates = _exact_cohort(np.clip(solution.x * participation, floor, ceilings), sizes, cohort, floor, ceilings)
        if loss(rates / participation) < best_loss:
            best, best_loss = rates, loss(rates / participation)
    return tuple(float(rate) for rate in best)


def largest_rates(groups: Grouping, *, participation: float, fairness_floor: float) -> FloatArray:
    """The largest rate each group can have while all others are at the floor."""
    sizes = _sizes(groups)
    left = participation * sizes.sum() - fairness_floor * participation * (sizes.sum() - sizes)
    # With a floor of 1 nothing is left to choose, and rounding may fall on either side of it.
    largest: FloatArray = np.clip(left / sizes, fairness_floor * participation, 1.0)
    return largest


def _exact_cohort(
    rates: FloatArray, sizes: FloatArray, cohort: float, floor: float, ceilings: FloatArray
) -> FloatArray:
    """Takes the solver's last rounding error out of the cohort, from the rates that have room for it."""
    for _ in range(20):
        missing = cohort - (rates * sizes).sum()
        room = (ceilings - rates) if missing > 0 else (rates - floor)
        if abs(missing) <= 1e-12 * cohort or not (room * sizes).sum():
            break
        rates = np.clip(rates + missing * room / (room * sizes).sum(), floor, ceilings)
    return rates


def sample_rates(
    groups: Grouping, *, participation: float, num_rounds: int, accountant: Accountant
) -> tuple[float, tuple[float, ...]]:
    """IDP-FedAvg's *Sample*: one noise multiplier, and the largest rate that it allows each group; returns both.

    There is no cap on a rate but 1. Rates are rounded down to keep the budgets; the cohort is met to one part in a
    thousand.
    """
    sizes = _sizes(groups)
    cohort = participation * sizes.sum()
    budgets = [members.budget(num_rounds, accountant) for members in groups.groups]

    def rates_at(log_noise: float, rate_for: Callable[..., float]) -> tuple[float, ...]:
        return tuple(rate_for(noise_multiplier=math.exp(log_noise), **budget) for budget in budgets)

    def excess(log_noise: float, rate_for: Callable[..., float]) -> float:
        return math.log((np.array(rates_at(log_noise, rate_for)) * sizes).sum() / cohort)

    uniform_noise = [math.log(rough_noise_multiplier(sampling_rate=participation, **budget)) for budget in budgets]
    # At the largest of these every group may take part at least at the uniform rate, at the smallest at most.
    low, high = min(uniform_noise) - 0.05, max(uniform_noise) + 0.05
    if not excess(low, rough_sampling_rate) <= 0 <= excess(high, rough_sampling_rate):
        raise InputError(
            f"rates 'sample' have no common noise multiplier for a mean rate of {participation:g}: the budgets lie too "
            f"far apart, or the participation is too large; take other rates"
        )
    from scipy import optimize

    rough = float(optimize.brentq(excess, low, high, args=(rough_sampling_rate,), xtol=1e-5))
    # The rough rates are off by some per mille: Newton steps with the calibrated ones.
    step = 1e-3
    slope = (excess(rough + step, rough_sampling_rate) - excess(rough, rough_sampling_rate)) / step
    log_noise = rough
    for _ in range(4):
        off = excess(log_noise, sampling_rate_for)
        if abs(off) < 1e-4 or not slope > 0:
            break
        log_noise -= off / slope
    return math.exp(log_noise), rates_at(log_noise, sampling_rate_for)
