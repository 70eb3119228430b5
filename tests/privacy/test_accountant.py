import logging
import math

import pytest

from gdpfed.errors import InputError
from gdpfed.privacy.accountant import (
    SampledGaussian,
    check_accountant,
    epsilon_of,
    gaussian_epsilon,
    grid_interval,
    rough_rdp_epsilon,
)

DELTA = 6000**-1.1


def mechanism(noise: float = 1.0, rate: float = 0.02, rounds: int = 50) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=rounds)


@pytest.mark.parametrize("noise", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.005, 0.1, 1.0])
@pytest.mark.parametrize("rounds", [1, 50])
def test_pld_is_at_most_rdp(noise: float, rate: float, rounds: int) -> None:
    judged = mechanism(noise, rate, rounds)
    assert epsilon_of(judged, delta=DELTA) <= epsilon_of(judged, delta=DELTA, accountant="rdp")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_more_noise_costs_less(accountant: str) -> None:
    name = check_accountant(accountant)
    base = epsilon_of(mechanism(), delta=DELTA, accountant=name)
    assert epsilon_of(mechanism(noise=1.1), delta=DELTA, accountant=name) < base
    assert epsilon_of(mechanism(rate=0.025), delta=DELTA, accountant=name) > base
    assert epsilon_of(mechanism(rounds=60), delta=DELTA, accountant=name) > base


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 16), (20.0, 100)])
def test_unsampled_is_exact(noise: float, rounds: int) -> None:
    """The analytic condition, evaluated here: delta at the epsilon is at most the target, and hardly less."""
    epsilon = epsilon_of(mechanism(noise, 1.0, rounds), delta=1e-5)
    mu = math.sqrt(rounds) / noise

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    delta = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
    assert 1e-5 * (1 - 1e-6) <= delta <= 1e-5


def test_no_noise_is_infinite() -> None:
    assert math.isinf(epsilon_of(mechanism(noise=0.0), delta=DELTA))
    assert epsilon_of(mechanism(noise=0.0, rate=0.0), delta=DELTA) == 0.0
    assert math.isinf(gaussian_epsilon(noise_multiplier=0.0, num_releases=1, delta=DELTA))


def test_known_values() -> None:
    """Pinned to the last digits that matter: an upgrade that changes an epsilon must be seen."""
    assert epsilon_of(mechanism(1.5, 0.02, 50), delta=DELTA) == pytest.approx(0.369816, rel=1e-5)
    assert epsilon_of(mechanism(1.5, 0.02, 50), delta=DELTA, accountant="rdp") == pytest.approx(0.500110, rel=1e-5)
    assert gaussian_epsilon(noise_multiplier=1.504, num_releases=1, delta=6.98e-5) == pytest.approx(2.42, abs=0.005)
    assert gaussian_epsilon(noise_multiplier=1.504, num_releases=6, delta=6.98e-5) == pytest.approx(7.02, abs=0.005)


def test_a_delta_below_resolution_is_infinite_not_wrong() -> None:
    assert math.isinf(epsilon_of(mechanism(), delta=1e-16))


@pytest.mark.parametrize(("rounds", "delta"), [(1000, 1e-10), (10_000, 1e-11), (100_000, 1e-10)])
def test_rounding_of_composition_is_charged(rounds: int, delta: float) -> None:
    """At a rate just below 1 the exact Gaussian is the truth: the reported epsilon must not be below it."""
    noise = math.sqrt(rounds) / 0.3
    almost = epsilon_of(mechanism(noise, 1 - 1e-13, rounds), delta=delta)
    assert almost >= gaussian_epsilon(noise_multiplier=noise, num_releases=rounds, delta=delta) * (1 - 1e-9)


def test_grid_follows_the_accuracy() -> None:
    assert grid_interval(0.5, 50) == 2.0**-13
    assert grid_interval(0.5, 5) > grid_interval(0.5, 50)
    assert grid_interval(0.5, 50) == grid_interval(0.4999999, 50)


def test_rough_rdp_is_close_and_never_below() -> None:
    for judged in (mechanism(), mechanism(0.7, 0.1, 100), mechanism(5.0, 0.5, 20), mechanism(0.9, 0.001, 50)):
        full = epsilon_of(judged, delta=DELTA, accountant="rdp")
        assert full <= rough_rdp_epsilon(judged, delta=DELTA) <= 1.05 * full


def test_rdp_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        epsilon_of(mechanism(0.58, 0.0354, 50), delta=DELTA, accountant="rdp")
    assert not caplog.records


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"noise": -1.0}, "noise_multiplier"),
        ({"noise": math.nan}, "noise_multiplier"),
        ({"rate": 1.1}, "sampling_rate"),
        ({"rate": math.nan}, "sampling_rate"),
        ({"rounds": 0}, "num_rounds"),
        ({"rounds": 1.5}, "num_rounds"),
        ({"rounds": 10**8}, "num_rounds"),
        ({"noise": 1e-12}, "noise_multiplier"),
        ({"noise": 1e200}, "noise_multiplier"),
    ],
)
def test_bad_mechanisms_are_refused(fields: dict[str, float], named: str) -> None:
    with pytest.raises(InputError, match=named):
        mechanism(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_bad_deltas_are_refused(delta: float) -> None:
    with pytest.raises(InputError, match="delta"):
        epsilon_of(mechanism(), delta=delta)


def test_unknown_accountant_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'pld'"):
        check_accountant("plds")
