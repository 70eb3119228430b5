import math

import pytest

from gdpfed.errors import InputError
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of, gaussian_epsilon
from gdpfed.privacy.adversaries import (
    chained_epsilon,
    max_participations_for,
    person_epsilon,
    server_epsilon,
    server_view,
)

DELTA = 6000**-1.1


def test_server_epsilon_is_exact() -> None:
    # SPEC'd by hand at noise multiplier 1.504: one participation 2.42, six 7.02.
    assert server_epsilon(noise_multiplier=1.504, num_participations=1, delta=DELTA) == pytest.approx(2.4219, abs=1e-3)
    assert server_epsilon(noise_multiplier=1.504, num_participations=6, delta=DELTA) == pytest.approx(7.0174, abs=1e-3)
    for count in (1, 3, 10):
        unsampled = SampledGaussian(noise_multiplier=2.0, sampling_rate=1.0, num_rounds=count)
        assert server_epsilon(noise_multiplier=2.0, num_participations=count, delta=DELTA) == epsilon_of(
            unsampled, delta=DELTA
        )
    assert server_epsilon(noise_multiplier=2.0, num_participations=0, delta=DELTA) == 0.0


def mechanism(rate: float, num_rounds: int) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=1.0, sampling_rate=rate, num_rounds=num_rounds)


def test_cap_bounds_every_client() -> None:
    free = server_view(mechanism(0.1, 100), delta=DELTA)
    capped = server_view(mechanism(0.1, 100), delta=DELTA, max_participations=5)
    assert (free.mean_participations, free.max_participations) == (10, 100)
    assert free.p99_participations == 18
    assert (capped.mean_participations, capped.p99_participations, capped.max_participations) == (5, 5, 5)
    assert capped.epsilon_max == server_epsilon(noise_multiplier=1.0, num_participations=5, delta=DELTA)
    assert free.epsilon_mean < free.epsilon_p99 < free.epsilon_max


def test_mean_participations_are_rounded_up() -> None:
    assert server_view(mechanism(0.006, 50), delta=DELTA).mean_participations == 1
    assert server_view(mechanism(0.02, 50), delta=DELTA).mean_participations == 1
    assert server_view(mechanism(0.021, 50), delta=DELTA).mean_participations == 2


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 20.0])
def test_max_participations_is_the_inverse(epsilon: float) -> None:
    most = max_participations_for(noise_multiplier=2.0, epsilon=epsilon, delta=DELTA)
    if most:
        assert server_epsilon(noise_multiplier=2.0, num_participations=most, delta=DELTA) <= epsilon
    assert server_epsilon(noise_multiplier=2.0, num_participations=most + 1, delta=DELTA) > epsilon


def linked(count: int, rate: float, noise: float) -> list[tuple[float, float]]:
    return [(rate, noise)] * count


def test_one_client_per_person_is_the_release_epsilon() -> None:
    release = epsilon_of(SampledGaussian(noise_multiplier=1.0, sampling_rate=0.05, num_rounds=20), delta=DELTA)
    person = person_epsilon(sums=[linked(1, 0.05, 1.0)], num_rounds=20, delta=DELTA)
    assert release <= person <= 1.003 * release


def test_same_sum_is_not_composition() -> None:
    person = person_epsilon(sums=[linked(2, 1.0, 8.0)], num_rounds=5, delta=1e-5)
    half_the_noise = gaussian_epsilon(noise_multiplier=4.0, num_releases=5, delta=1e-5)
    as_if_composed = gaussian_epsilon(noise_multiplier=8.0, num_releases=10, delta=1e-5)
    assert person == pytest.approx(half_the_noise, rel=2e-3)
    assert person >= half_the_noise
    assert person > 1.3 * as_if_composed


def test_two_sums_compose() -> None:
    person = person_epsilon(sums=[linked(1, 1.0, 8.0), linked(1, 1.0, 6.0)], num_rounds=5, delta=1e-5)
    combined = 1 / math.sqrt(1 / 64 + 1 / 36)
    assert person == pytest.approx(gaussian_epsilon(noise_multiplier=combined, num_releases=5, delta=1e-5), rel=2e-3)


def test_person_is_at_most_group_privacy() -> None:
    """Group privacy: k clients cost at most k epsilon, at delta (1 + e^eps + ...). Compared at that larger delta."""
    release = epsilon_of(SampledGaussian(noise_multiplier=1.0, sampling_rate=0.05, num_rounds=20), delta=1e-6)
    person = person_epsilon(sums=[linked(2, 0.05, 1.0)], num_rounds=20, delta=1e-6 * (1 + math.exp(release)))
    assert person <= 2 * release


def test_the_papers_sum_of_epsilons_is_no_bound_within_a_group() -> None:
    """Two clients of one group at the same delta cost more than twice epsilon: adding epsilons needs a larger delta."""
    release = epsilon_of(SampledGaussian(noise_multiplier=1.2755, sampling_rate=0.02, num_rounds=50), delta=DELTA)
    person = person_epsilon(sums=[linked(2, 0.02, 1.2755)], num_rounds=50, delta=DELTA)
    assert person > 2.1 * release


def test_more_linked_clients_cost_more() -> None:
    costs = [person_epsilon(sums=[linked(count, 0.1, 2.0)], num_rounds=10, delta=1e-5) for count in (0, 1, 2, 3)]
    assert costs[0] == 0.0
    assert costs == sorted(costs)
    assert costs[-1] > costs[1]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="num_participations"):
        server_epsilon(noise_multiplier=1.0, num_participations=-1, delta=DELTA)
    with pytest.raises(InputError, match="max_participations"):
        server_view(mechanism(0.1, 5), delta=DELTA, max_participations=0)
    assert math.isinf(person_epsilon(sums=[linked(1, 0.1, 0.0)], num_rounds=1, delta=DELTA))


@pytest.mark.parametrize(("rate", "noise", "asks"), [(0.1, 1.3, 10), (0.4, 2.2, 10), (1.0, 6.0, 5), (0.02, 1.0, 30)])
def test_chains_hold_for_every_alignment(rate: float, noise: float, asks: int) -> None:
    """Two clients of one person in a rotation: asked always together, never, or in some of the rounds."""
    one = SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=asks)
    bound = chained_epsilon([one, one], delta=DELTA, accountant="pld")
    together = person_epsilon(sums=[linked(2, rate, noise)], num_rounds=asks, delta=DELTA)
    apart = epsilon_of(SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=2 * asks), delta=DELTA)
    assert epsilon_of(one, delta=DELTA) < apart < bound
    assert together < bound < 1.6 * together
    assert chained_epsilon([one], delta=DELTA, accountant="pld") == epsilon_of(one, delta=DELTA)
