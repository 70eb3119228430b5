"""What a mechanism costs: epsilon from noise, rate and rounds.

Place: the bottom of the flow; calibration, plans, ledger and audit all ask here. The mechanism is described by a value
(`SampledGaussian`) and judged by dp-accounting, with `pld` (tightest, the default) or `rdp` (what the paper used).

The mechanism: in each of `num_rounds` rounds every client takes part independently with probability `sampling_rate`
(Poisson); the sum of updates, each of L2 norm at most C, is released with Gaussian noise of standard deviation
`noise_multiplier` * C. Neighbours differ by the presence of one client (add or remove). Nothing else is accounted for
here: a fixed-size cohort is another mechanism, with a larger epsilon, and has no function.

Guarantees (tests of the same name):
  pld_is_at_most_rdp           the PLD epsilon never exceeds the RDP one.
  more_noise_costs_less        epsilon falls with noise and rises with rate and rounds.
  unsampled_is_exact           at sampling_rate 1 the PLD epsilon is the analytic one of the Gaussian mechanism.
  no_noise_is_infinite         noise_multiplier 0 has an infinite epsilon, unless nobody is ever sampled.
  epsilon_is_a_number          never NaN, never below 0, at the ends of what may be asked too.
  empty_promise_is_refused     a delta that is not below half the probability of taking part at all.
"""

import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from gdpfed.config import fit_fields
from gdpfed.errors import InputError, PrivacyError, expect, suggestion
from gdpfed.privacy.cache import remembered
from gdpfed.privacy.rounding import delta_up

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCY",
    "MAX_ROUNDS",
    "NOISE_RANGE",
    "SMALLEST_DELTA",
    "Accountant",
    "SampledGaussian",
    "accountant_version",
    "check_accountant",
    "check_delta",
    "check_noise_multiplier",
    "check_num_rounds",
    "check_promises_something",
    "delta_after_rounding",
    "epsilon_bound",
    "epsilon_of",
    "gaussian_epsilon",
    "grid_interval",
    "probability_of_taking_part",
    "rough_rdp_epsilon",
]

Accountant = Literal["pld", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
ADJACENCY = "add-or-remove-one-client"

SMALLEST_DELTA = 1e-300
MAX_ROUNDS = 1_000_000
NOISE_RANGE = (0.01, 1e7)
# A delta must be below this share of the probability of taking part at all. A mechanism that publishes the data of
# those who take part with probability share, and else nothing, keeps (0, share * probability): at a share of 1 an
# epsilon promises nothing, and at a half a client that takes part is as likely laid open as not.
LARGEST_SHARE = 0.5
# Composition by FFT rounds: measured, delta comes out up to 5e-18 too small for each round. Twenty times that is taken
# off the delta that is asked for, so that what is reported stays an upper bound; a delta below it is refused.
_DELTA_ROUNDING_PER_ROUND = 1e-16
# dp-accounting's closed-form epsilon is found by a search to 1e-12, on either side; we report the upper side.
_ANALYTIC_TOLERANCE = 2e-12
# The discretisation error of epsilon is about num_rounds * interval^2 (measured: 0.3 to 0.9 of it).
_FINE_RELATIVE_ERROR = 1e-6
COARSE_RELATIVE_ERROR = 1e-3
# Fractional orders are slow; these few suffice where the optimum is low, whole numbers elsewhere.
_FEW_ORDERS = (1.1, 1.25, 1.5, 1.75, 2.25, 2.5, 3.5, 4.5, *range(2, 12), *range(12, 64, 2), 80, 128, 256, 512)
# Never finer than dp-accounting's default of 1e-4: a wider grid is the pessimistic one.
_SMALLEST_INTERVAL, _LARGEST_INTERVAL = 2.0**-13, 2.0**-6


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """``num_rounds`` noisy sums over Poisson samples: all that the accountant needs to know of a group's training."""

    noise_multiplier: float
    sampling_rate: float
    num_rounds: int

    def __post_init__(self) -> None:
        fit_fields(self)
        check_noise_multiplier(self.noise_multiplier)
        expect(0 <= self.sampling_rate <= 1, "a sampling_rate between 0 and 1", sampling_rate=self.sampling_rate)
        check_num_rounds(self.num_rounds)


def check_noise_multiplier(noise_multiplier: float, *, field: str = "noise_multiplier") -> float:
    """Returns the noise multiplier if it is 0 (no privacy) or within what the accountant can judge."""
    low, high = NOISE_RANGE
    is_judged = noise_multiplier == 0 or low <= noise_multiplier <= high
    expect(is_judged, f"{field} between {low:g} and {high:g}, or 0", **{field: noise_multiplier})
    return float(noise_multiplier)


def check_num_rounds(num_rounds: int, *, field: str = "num_rounds") -> None:
    """Refuses what is not a whole number of rounds that the accountant can judge."""
    is_judged = isinstance(num_rounds, int) and 1 <= num_rounds <= MAX_ROUNDS
    expect(is_judged, f"{field} to be a whole number from 1 to {MAX_ROUNDS}", **{field: num_rounds})


def accountant_version() -> str:
    """What computes the epsilons, for the record."""
    return f"dp-accounting {importlib.metadata.version('dp-accounting')}"


def check_accountant(name: str) -> Accountant:
    """Returns ``name`` if it is an accountant, else says which there are."""
    if name not in ACCOUNTANTS:
        raise InputError(f"expected accountant 'pld' or 'rdp', got {name!r}{suggestion(name, ACCOUNTANTS)}")
    return name


def check_delta(delta: float, *, field: str = "delta") -> float:
    """Returns ``delta`` if it is a probability strictly between 0 and 1, and its inverse a number."""
    meaning = "it is a failure probability, which should be well below 1 / number of clients"
    holds = SMALLEST_DELTA <= delta < 1
    expect(holds, f"0 < {field} < 1, and at least {SMALLEST_DELTA:g}", **{field: f"{delta}: {meaning}"})
    return float(delta)


def probability_of_taking_part(sampling_rates: Iterable[float], *, num_rounds: int) -> float:
    """Of at least one client with these rates, in at least one of ``num_rounds`` rounds."""
    rates = tuple(sampling_rates)
    if 1 in rates:
        return 1.0
    return -math.expm1(num_rounds * math.fsum(math.log1p(-rate) for rate in rates))


def check_promises_something(
    *, delta: float, sampling_rates: Iterable[float], num_rounds: int, whose: str = "a client"
) -> None:
    """Raises PrivacyError where ``delta`` is so near the probability of taking part that any epsilon would be kept.

    The rates are those of one client, or of all clients of one person. Who never takes part has nothing to lose.
    """
    check_delta(delta)
    takes_part = probability_of_taking_part(sampling_rates, num_rounds=num_rounds)
    if takes_part > 0 and not delta < LARGEST_SHARE * takes_part:
        raise PrivacyError(
            f"expected delta below half the probability that {whose} takes part at all, got "
            f"delta={delta_up(delta)} and the probability {takes_part:.3g}: within it half of those who take part "
            f"could be released in clear; lower delta, or raise the rate or the rounds"
        )


def grid_interval(epsilon: float, num_rounds: int, relative_error: float = _FINE_RELATIVE_ERROR) -> float:
    """The width of the loss grid at which the discretisation adds about ``relative_error`` to ``epsilon``.

    A power of two, so that nearby epsilons share a grid and calibration is judged on the grid that reports it.
    """
    ideal = math.sqrt(relative_error * max(epsilon, 1e-9) / num_rounds)
    return min(max(2.0 ** round(math.log2(ideal)), _SMALLEST_INTERVAL), _LARGEST_INTERVAL)


def delta_after_rounding(delta: float, num_rounds: int) -> float:
    """What is left of ``delta`` once the rounding errors of composing so many rounds are charged to it; at least 0."""
    return max(delta - num_rounds * _DELTA_ROUNDING_PER_ROUND, 0.0)


def gaussian_epsilon(*, noise_multiplier: float, num_releases: float, delta: float) -> float:
    """Epsilon of ``num_releases`` Gaussian releases without sampling (exact, never rounded down)."""
    import dp_accounting
    import numpy as np

    if num_releases == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    # Far from the epsilon that it looks for, dp-accounting takes the logarithm of a delta of 0.
    with np.errstate(divide="ignore"):
        exact = _or_infinite(dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(num_releases), delta))
    return exact * (1 + _ANALYTIC_TOLERANCE) + _ANALYTIC_TOLERANCE if exact > 0 else 0.0


def _or_infinite(epsilon: float) -> float:
    """An epsilon as computed; where the computation broke down, nothing is promised."""
    return math.inf if math.isnan(epsilon) else max(float(epsilon), 0.0)


def epsilon_of(mechanism: SampledGaussian, *, delta: float, accountant: Accountant = "pld") -> float:
    """Epsilon at ``delta`` of a mechanism, add or remove one client, against whoever sees only the released sums."""
    check_delta(delta)
    if mechanism.sampling_rate == 0:
        return 0.0
    if mechanism.noise_multiplier == 0:
        return math.inf
    return _JUDGES[check_accountant(accountant)](mechanism=mechanism, delta=delta)


def _pld_epsilon(*, mechanism: SampledGaussian, delta: float) -> float:
    noise, num_rounds = mechanism.noise_multiplier, mechanism.num_rounds
    if mechanism.sampling_rate == 1:
        return gaussian_epsilon(noise_multiplier=noise, num_releases=num_rounds, delta=delta)
    coarse = grid_interval(1.0, num_rounds, COARSE_RELATIVE_ERROR)
    rough = _epsilon_on_grid(mechanism, delta, coarse, only_removed=True)
    if not math.isfinite(rough):
        return math.inf
    return _epsilon_on_grid(mechanism, delta, grid_interval(rough, num_rounds))


def _epsilon_on_grid(mechanism: SampledGaussian, delta: float, interval: float, *, only_removed: bool = False) -> float:
    allowed = delta_after_rounding(delta, mechanism.num_rounds)
    if allowed == 0:
        return math.inf
    from gdpfed.privacy import pld

    compose = pld.composed_remove if only_removed else pld.composed_distribution
    composed = compose(**vars(mechanism), grid_interval=interval)
    return _or_infinite(composed.get_epsilon_for_delta(allowed))


def epsilon_bound(mechanism: SampledGaussian, *, delta: float, accountant: Accountant = "pld") -> float:
    """Ten times as fast as `epsilon_of`, and an upper bound as that is: for a display that counts rounds.

    About 0.1 % above it; where epsilon is some dozen or more, and nobody would state it, on either side of it.
    """
    if check_accountant(accountant) == "rdp" or mechanism.sampling_rate in (0, 1) or mechanism.noise_multiplier == 0:
        return epsilon_of(mechanism, delta=delta, accountant=accountant)
    check_delta(delta)
    return _epsilon_on_grid(mechanism, delta, grid_interval(1.0, mechanism.num_rounds, COARSE_RELATIVE_ERROR))


def rough_rdp_epsilon(mechanism: SampledGaussian, *, delta: float) -> float:
    """The RDP epsilon over a sixth of the orders, some per cent too large at worst: for searches, never for a claim."""
    return _rdp_epsilon(mechanism=mechanism, delta=delta, orders=_FEW_ORDERS)


def _rdp_epsilon(*, mechanism: SampledGaussian, delta: float, orders: tuple[float, ...] | None = None) -> float:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    one_round = dp_accounting.PoissonSampledDpEvent(
        mechanism.sampling_rate, dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
    )
    judge = RdpAccountant(orders, neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    # dp-accounting warns of each Renyi order that it leaves out, which can only raise epsilon, and of a divergence that
    # rounding made negative.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        judge.compose(dp_accounting.SelfComposedDpEvent(one_round, mechanism.num_rounds))
        return _or_infinite(judge.get_epsilon(delta))
    finally:
        logger.setLevel(level)


# One for each accountant: a name without a judge must not be judged by another's.
_JUDGES: dict[Accountant, Callable[..., float]] = {
    "pld": remembered(_pld_epsilon),
    "rdp": remembered(_rdp_epsilon),
}
