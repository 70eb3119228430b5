"""The fast privacy loss distribution against dp-accounting's own, and against plain integration."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
from scipy import integrate, stats

from gdpfed.privacy import pld

MECHANISMS = [(0.3, 0.001), (0.82, 0.0063), (1.5, 0.02), (0.7, 0.3), (5.0, 0.9), (40.0, 0.999)]


@pytest.mark.parametrize(("noise_multiplier", "sampling_rate"), MECHANISMS)
@pytest.mark.parametrize("removed", [True, False])
def test_curve_equals_dp_accounting(noise_multiplier: float, sampling_rate: float, removed: bool) -> None:
    adjacency = privacy_loss_mechanism.AdjacencyType
    theirs = privacy_loss_mechanism.GaussianPrivacyLoss(
        noise_multiplier,
        sampling_prob=sampling_rate,
        adjacency_type=adjacency.REMOVE if removed else adjacency.ADD,
    )
    bounds = theirs.connect_dots_bounds()
    epsilons = np.linspace(bounds.epsilon_lower, bounds.epsilon_upper, 2001)
    direction = pld.Direction(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, removed=removed)
    np.testing.assert_allclose(
        pld.round_curve(epsilons, direction), theirs.get_delta_for_epsilon(epsilons), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(("noise_multiplier", "sampling_rate"), [(0.82, 0.0063), (0.7, 0.3), (2.0, 0.5)])
@pytest.mark.parametrize("epsilon", [0.01, 0.2, 1.0])
def test_curve_equals_integration(noise_multiplier: float, sampling_rate: float, epsilon: float) -> None:
    """An oracle that shares no code: the positive part of P - e^eps Q, integrated."""

    xs = np.linspace(-14 * noise_multiplier, 1 + 14 * noise_multiplier, 400_001)
    absent = stats.norm.pdf(xs, 0, noise_multiplier)
    present = (1 - sampling_rate) * absent + sampling_rate * stats.norm.pdf(xs, 1, noise_multiplier)
    for removed, (first, second) in {True: (present, absent), False: (absent, present)}.items():
        expected = integrate.simpson(np.maximum(first - math.exp(epsilon) * second, 0.0), x=xs)
        direction = pld.Direction(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, removed=removed)
        assert float(pld.round_curve(np.array([epsilon]), direction)[0]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("noise_multiplier", "sampling_rate"), [(0.82, 0.0063), (1.5, 0.02), (5.0, 0.9)])
def test_epsilon_equals_dp_accounting(noise_multiplier: float, sampling_rate: float) -> None:
    theirs = PLDAccountant(value_discretization_interval=1e-3)
    event = PoissonSampledDpEvent(sampling_rate, GaussianDpEvent(noise_multiplier))
    theirs.compose(SelfComposedDpEvent(event, 50))
    ours = pld.composed_distribution(
        noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_rounds=50, grid_interval=1e-3
    )
    for delta in (1e-3, 1e-5, 1e-8):
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(theirs.get_epsilon(delta), rel=1e-7)


@pytest.mark.parametrize(("noise_multiplier", "sampling_rate"), MECHANISMS)
def test_coarser_grid_is_never_optimistic(noise_multiplier: float, sampling_rate: float) -> None:
    epsilons = [
        pld.composed_distribution(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_rounds=20, grid_interval=interval
        ).get_epsilon_for_delta(1e-5)
        for interval in (2.0**-12, 2.0**-10, 2.0**-8, 2.0**-6)
    ]
    assert all(finer <= coarser * (1 + 1e-9) for finer, coarser in itertools.pairwise(epsilons)), epsilons


def test_both_directions_count() -> None:
    """Where adding a client costs more than removing it (small epsilons), delta is that of adding."""
    both = pld.composed_distribution(noise_multiplier=1.0, sampling_rate=0.5, num_rounds=1, grid_interval=1e-3)
    removal = pld.composed_remove(noise_multiplier=1.0, sampling_rate=0.5, num_rounds=1, grid_interval=1e-3)
    epsilon = -0.5
    added = pld.Direction(noise_multiplier=1.0, sampling_rate=0.5, removed=False)
    curve = float(pld.round_curve(np.array([epsilon]), added)[0])
    assert curve > float(removal.get_delta_for_epsilon(epsilon)) + 1e-3
    assert both.get_delta_for_epsilon(epsilon) == pytest.approx(curve, rel=1e-3)


def test_the_search_direction_is_the_larger_one() -> None:
    """The rough search looks at removal alone; were addition larger, it would start from the wrong place."""
    both = pld.composed_distribution(noise_multiplier=0.8, sampling_rate=0.02, num_rounds=50, grid_interval=1e-3)
    removal = pld.composed_remove(noise_multiplier=0.8, sampling_rate=0.02, num_rounds=50, grid_interval=1e-3)
    assert removal.get_epsilon_for_delta(1e-5) == both.get_epsilon_for_delta(1e-5)


@pytest.mark.training
def test_a_long_grid_is_widened() -> None:
    """Little noise has losses of thousands: memory stays bounded, and the answer is an upper bound."""
    tiny = pld.composed_remove(noise_multiplier=0.02, sampling_rate=0.5, num_rounds=1, grid_interval=2.0**-17)
    assert tiny.size <= 2**21 + 2


def same(one: pld_pmf.PLDPmf, other: pld_pmf.PLDPmf) -> bool:
    dense, expected = one.to_dense_pmf(), other.to_dense_pmf()
    return (
        type(one) is type(other)
        and dense._lower_loss == expected._lower_loss
        and dense._infinity_mass == expected._infinity_mass
        and np.array_equal(dense._probs, expected._probs)
    )


@pytest.mark.parametrize(("noise_multiplier", "sampling_rate"), MECHANISMS)
@pytest.mark.parametrize(("interval", "num_rounds"), [(2.0**-6, 1), (2.0**-6, 30), (2.0**-10, 30), (2.0**-10, 400)])
def test_composition_equals_dp_accounting(
    noise_multiplier: float, sampling_rate: float, interval: float, num_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = pld.composed_remove(
        noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_rounds=num_rounds, grid_interval=interval
    )
    monkeypatch.setattr(pld, "_connected", pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap)
    monkeypatch.setattr(pld, "_self_composed", lambda losses, rounds: losses.self_compose(rounds))
    theirs = pld.composed_remove(
        noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_rounds=num_rounds, grid_interval=interval
    )
    assert same(ours, theirs)


@pytest.mark.parametrize(
    ("sensitivities", "probabilities"),
    [
        ((0.0, 0.5), (0.98, 0.02)),
        ((0.0, 0.4, 0.8), (0.81, 0.18, 0.01)),
        ((0.0, 0.3, 0.7, 1.0), (0.5, 0.2, 0.2, 0.1)),
        ((1.0, 2.0), (0.5, 0.5)),
    ],
)
def test_mixture_equals_dp_accounting(sensitivities: tuple[float, ...], probabilities: tuple[float, ...]) -> None:
    ours = pld.composed_mixture(
        sensitivities=sensitivities, probabilities=probabilities, num_rounds=7, grid_interval=2.0**-8
    )
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        standard_deviation=1.0,
        sensitivities=sensitivities,
        sampling_probs=probabilities,
        value_discretization_interval=2.0**-8,
    ).self_compose(7)
    assert same(ours._pmf_remove, theirs._pmf_remove)
    assert same(ours._pmf_add, theirs._pmf_add)
