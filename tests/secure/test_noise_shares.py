"""Noise that stays sufficient: exact sizes, and the theorem by numbers."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gdpfed.errors import InputError, PrivacyError
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.noise_shares import (
    NoiseShare,
    Tolerance,
    _binomial_quantiles,
    excess,
    log_extra_loss,
    noise_share,
    released_variance,
)
from gdpfed.secure.randomness import SimulatedRandomness
from tests.training.checkers import variance_window

TOLERANCES = [
    Tolerance(),
    Tolerance(dropout_rate=0.1),
    Tolerance(colluding_fraction=0.1),
    Tolerance(dropout_rate=0.1, colluding_fraction=0.1),
    Tolerance(dropout_rate=0.3, colluding_fraction=0.3),
    Tolerance(dropout_rate=0.49, colluding_fraction=0.49),
]


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_noise_suffices_after_every_tolerated_loss(tolerance: Tolerance) -> None:
    """Exact, for all cohorts up to 200: whoever is lost, whoever tells."""
    total = 123_456_789
    for cohort in range(1, 201):
        share = noise_share(total_variance=total, cohort=cohort, tolerance=tolerance, num_params=1000)
        for dropouts in range(share.dropouts + 1):
            for colluders in range(share.colluders + 1):
                assert (cohort - dropouts - colluders) * share.variance >= total
        assert share.guaranteed_shares * share.variance < total + share.guaranteed_shares
        assert share.smallest_survivors >= tolerance.quorum(cohort)
        assert 2 * tolerance.quorum(cohort) > cohort + share.colluders


def shares(cohort: int, variance: int, num: int) -> Iterator[NDArray[np.float64]]:
    for client in range(cohort):
        source = SimulatedRandomness(seed=1, round_number=0, client=client)
        yield discrete_gaussian(num, variance=variance, stream=source.stream("noise")).astype(np.float64)


@pytest.mark.training
def test_noise_in_the_sum_is_measured() -> None:
    """10^6 coordinates, cohort of 20 of which 4 may be lost and 2 may tell: for every number of dropouts never below
    the plan, also less the colluders' shares. With nothing to tolerate within 0.7 % of the plan."""
    num, total = 1_000_000, 10**8
    low, high = variance_window(num)
    tolerance = Tolerance(dropout_rate=0.1, colluding_fraction=0.1)
    share = noise_share(total_variance=total, cohort=20, tolerance=tolerance, num_params=num)
    assert (share.dropouts, share.colluders) == (4, 2)
    known, unknown = np.zeros(num), np.zeros(num)
    for client, drawn in enumerate(shares(20, share.variance, num)):
        (known if client < 2 else unknown).__iadd__(drawn)
        survivors = client + 1
        if survivors >= share.smallest_survivors:
            everything = float(np.mean(np.square(known + unknown))) / total
            assert low * survivors / 14 <= everything <= high * survivors / 14
            assert everything > 1
            left = float(np.mean(np.square(unknown))) / total
            assert left >= low
            assert left > 1 or survivors == share.smallest_survivors
    plain = noise_share(total_variance=total, cohort=20, tolerance=Tolerance(), num_params=num)
    exactly = float(np.mean(np.square(sum(shares(20, plain.variance, num))))) / total
    assert 0.993 < low <= exactly <= high < 1.007


def test_known_mistakes_would_be_seen() -> None:
    """1/r for 1/sqrt(r), shares not sized for those who are lost: both leave less than the window."""
    low, _ = variance_window(1_000_000)
    for mistaken in (20 / 20**2, 19 / 20):
        assert mistaken < low


def test_one_client_carries_all() -> None:
    for tolerance in TOLERANCES:
        share = noise_share(total_variance=5_000, cohort=1, tolerance=tolerance, num_params=10)
        assert share == NoiseShare(cohort=1, dropouts=0, colluders=0, variance=5_000)


def test_small_shares_are_refused() -> None:
    with pytest.raises(PrivacyError, match="std >= 10"):
        noise_share(total_variance=990, cohort=10, tolerance=Tolerance(), num_params=10)
    noise_share(total_variance=1000, cohort=10, tolerance=Tolerance(), num_params=10)
    with pytest.raises(InputError, match="2\\^28"):
        noise_share(total_variance=2**60, cohort=1, tolerance=Tolerance(), num_params=10)
    with pytest.raises(InputError, match="empty"):
        noise_share(total_variance=1000, cohort=0, tolerance=Tolerance(), num_params=10)
    with pytest.raises(PrivacyError, match="honest survivor"):
        NoiseShare(cohort=5, dropouts=3, colluders=2, variance=100)


def exact(variance: float, reach: int) -> NDArray[np.float64]:
    numbers = np.arange(-reach, reach + 1)
    heights = np.exp(-(numbers**2) / (2 * variance))
    found: NDArray[np.float64] = heights / heights.sum()
    return found


@pytest.mark.training
@pytest.mark.parametrize("variance", [0.5, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("num_shares", [2, 3, 5])
def test_extra_loss_is_a_bound(variance: float, num_shares: int) -> None:
    """Where the loss is large enough to be seen: small shares, by convolution, number by number; rounding, by
    integration."""
    reach = 40
    summed = single = exact(variance, reach)
    for _ in range(num_shares - 1):
        summed = np.convolve(summed, single)
    whole = exact(num_shares * variance, num_shares * reach)
    middle = slice(num_shares * reach - 6, num_shares * reach + 7)
    worst = float(np.abs(np.log(summed[middle] / whole[middle])).max())
    bound = 5 * (num_shares - 1) * math.exp(-(math.pi**2) * variance)
    assert 1e-10 < worst <= bound
    # Randomised rounding of the continuous Gaussian of variance s^2 - eta^2.
    eta, spread = 0.4 * variance, 3.0
    grid = np.linspace(-30, 30, 600_001)
    normaliser = sum(np.exp(-((number - grid) ** 2) / (2 * eta)) for number in range(-35, 36))
    density = stats.norm.pdf(grid, scale=math.sqrt(spread))
    rounded = np.array(
        [np.sum(density * np.exp(-((number - grid) ** 2) / (2 * eta)) / normaliser) * 1e-4 for number in range(-6, 7)]
    )
    off = float(np.abs(np.log(rounded / exact(spread + eta, 60)[54:67])).max())
    assert off <= 5 * math.exp(-2 * math.pi**2 * eta) + 1e-9
    both = log_extra_loss(share_variance=variance, num_shares=num_shares, num_params=1, rounding_variance=eta)
    assert math.exp(both) == pytest.approx(2 * (bound + 5 * math.exp(-2 * math.pi**2 * eta)))


def test_extra_loss_is_nothing_in_practice() -> None:
    assert log_extra_loss(share_variance=100, num_shares=10_000, num_params=10**9) < math.log(1e-200)
    assert log_extra_loss(share_variance=100, num_shares=1, num_params=10**9) < math.log(1e-200)


@pytest.mark.parametrize("cohort", [1, 2, 3, 5, 20, 50, 300, 1000])
def test_cohorts_seldom_abort(cohort: int) -> None:
    """The tolerated number is the 95 % quantile, where a quorum is left."""
    tolerance = Tolerance(dropout_rate=0.1, colluding_fraction=0.1)
    dropouts = tolerance.dropouts(cohort)
    if dropouts < cohort - tolerance.quorum(cohort):
        assert stats.binom.sf(dropouts, cohort, 0.1) <= 0.05 < stats.binom.sf(dropouts - 1, cohort, 0.1)
    assert excess(tolerance, cohort) >= cohort / (cohort - dropouts - tolerance.colluders(cohort))


@pytest.mark.parametrize(("dropout", "colluding"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.3, 0.3)])
def test_released_variance_is_enough_for_every_cohort(dropout: float, colluding: float) -> None:
    """The server always has at least 64 to add, with everybody left too; without tolerances hardly more."""
    tolerance = Tolerance(dropout_rate=dropout, colluding_fraction=colluding)
    total = 3000**2 + 25
    released = released_variance(total_variance=total, largest_cohort=300, tolerance=tolerance)
    for cohort in range(1, 301):
        share = noise_share(total_variance=total, cohort=cohort, tolerance=tolerance, num_params=10)
        assert cohort * share.variance + 64 <= released
    if not dropout and not colluding:
        assert released <= total + 300 + 64


@pytest.mark.parametrize(
    "wrong", [{"dropout_rate": 0.5}, {"dropout_rate": -0.1}, {"colluding_fraction": 1.0}, {"abort_rate": 0.0},
              {"complete_up_to": 0}, {"dropout_rate": math.nan}]
)  # fmt: skip
def test_impossible_tolerances_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Tolerance(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.25, 0.49])
def test_tolerated_dropouts_are_the_quantile_of_scipy(rate: float) -> None:
    tolerance = Tolerance(dropout_rate=rate)
    for cohort in (1, 2, 3, 5, 10, 37, 100, 1000, 20000):
        wanted = int(stats.binom.ppf(1 - tolerance.abort_rate, cohort, rate))
        assert tolerance.dropouts(cohort) == min(wanted, cohort - tolerance.quorum(cohort))


@pytest.mark.parametrize("share", [0.95, 1 - 1e-6])
def test_quantiles_are_those_of_scipy(share: float) -> None:
    """In every place, also where a probability is met to the digit: 0.95 of one trial at a rate of 0.05."""
    sizes = np.arange(1, 1001)
    for rate in (0.001, 0.05, 0.1, 1 / 3, 0.499):
        expected = stats.binom.ppf(share, sizes, rate)
        assert np.array_equal(_binomial_quantiles(share, len(sizes), rate), expected), rate
    assert _binomial_quantiles(0.95, 60_000, 0.3)[-1] == stats.binom.ppf(0.95, 60_000, 0.3)
