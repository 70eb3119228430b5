"""Curves against closed forms."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from gdpfed.audit.privacy_curves import PrivacyCurve, ReleaseFamily, ServerFamily, gaussian_delta
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of

RATES = np.concatenate([np.geomspace(1e-4, 0.5, 30), 1 - np.geomspace(0.5, 1e-4, 30)])


def mechanism(noise: float, rate: float, rounds: int) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=rounds)


def test_curve_is_the_gaussian_trade_off() -> None:
    family = ReleaseFamily(mechanism=mechanism(2.0, 1.0, 4), delta=1e-5)
    exact = stats.norm.cdf(stats.norm.ppf(RATES) - 1.0)
    least = family.curve(1.0).least_false_positives(RATES)
    assert (least <= exact + 1e-12).all()
    np.testing.assert_allclose(least, exact, rtol=2e-3, atol=1e-5)
    halved = family.curve(0.5).least_false_positives(RATES)
    np.testing.assert_allclose(halved, stats.norm.cdf(stats.norm.ppf(RATES) - 2.0), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_release_curve_allows_the_best_test_of_one_round_and_hardly_more(rate: float) -> None:
    """One round's likelihood ratio grows with the sum, so all best tests are thresholds: their rates are known."""
    curve = ReleaseFamily(mechanism=mechanism(0.8, rate, 1), delta=1e-5).curve(1.0)
    for threshold in np.linspace(0.5, 4, 15):
        false = float(stats.norm.sf(threshold))
        true = (1 - rate) * false + rate * float(stats.norm.sf(threshold - 1 / 0.8))
        assert curve.allows(true_positives=true, false_positives=false)
        assert not curve.allows(true_positives=1.03 * true, false_positives=false)


def test_server_curve_is_a_mixture() -> None:
    epsilons = ServerFamily(mechanism=mechanism(0.9, 0.3, 6), delta=1e-3).curve(1.0).epsilons
    for cap in (None, 2):
        expected = np.zeros_like(epsilons)
        for count in range(7):
            chance = math.comb(6, count) * 0.3**count * 0.7 ** (6 - count)
            shift = math.sqrt(count if cap is None else min(count, cap)) / 0.9
            if shift:
                # P[loss > epsilon] inside, less e^epsilon times outside.
                loss = (epsilons + shift**2 / 2) / shift
                expected += chance * (stats.norm.sf(loss - shift) - np.exp(epsilons) * stats.norm.sf(loss))
        family = ServerFamily(mechanism=mechanism(0.9, 0.3, 6), delta=1e-3, max_participations=cap)
        np.testing.assert_allclose(family.curve(1.0).deltas, expected, atol=1e-11)
        spent = family.epsilon(1.0)
        assert np.interp(spent, epsilons, expected) == pytest.approx(1e-3, rel=0.02)


def test_fewer_points_allow_more() -> None:
    epsilons = np.linspace(0, 8, 161)
    fine = PrivacyCurve(epsilons=epsilons, deltas=gaussian_delta(epsilons, 1.3))
    coarse = PrivacyCurve(epsilons=epsilons[::10], deltas=fine.deltas[::10])
    assert (coarse.least_false_positives(RATES) <= fine.least_false_positives(RATES)).all()


def test_less_noise_allows_more() -> None:
    planned = mechanism(1.1, 0.05, 20)
    for family in (ReleaseFamily(mechanism=planned, delta=1e-5), ServerFamily(mechanism=planned, delta=1e-5)):
        least = [family.curve(fraction).least_false_positives(RATES) for fraction in (0.4, 0.7, 1.0, 1.5)]
        for less, more in itertools.pairwise(least):
            assert (less <= more + 1e-12).all()
        spent = [family.epsilon(fraction) for fraction in (0.4, 0.7, 1.0, 1.5)]
        assert spent == sorted(spent, reverse=True)


def test_epsilon_of_the_family_is_not_above_the_accountants() -> None:
    planned = mechanism(1.1, 0.05, 20)
    exact = epsilon_of(planned, delta=1e-5)
    assert 0.99 * exact < ReleaseFamily(mechanism=planned, delta=1e-5).epsilon(1.0) <= exact
