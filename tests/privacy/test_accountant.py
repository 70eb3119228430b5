import logging
import math
from decimal import Decimal

import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.privacy.accountant import (
    SampledGaussian,
    check_accountant,
    check_promises_something,
    epsilon_bound,
    epsilon_of,
    gaussian_epsilon,
    grid_interval,
    probability_of_taking_part,
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


# Noise, rate and rounds at the ends of what may be asked, of which each takes seconds at most: tiny noise over many
# rounds takes minutes.
EXTREMES = [
    (0.01, 1e-7, 1), (0.02, 1e-7, 10), (0.03, 1e-12, 1), (0.05, 0.5, 1), (0.1, 1e-9, 3), (0.01, 1.0, 10**6),
    (1.0, 1e-12, 10**6), (100.0, 1e-3, 10**6), (1e6, 1e-12, 10**6), (1e6, 0.999999, 10**6), (1e7, 1.0, 1),
]  # fmt: skip


@pytest.mark.training
@pytest.mark.parametrize("extreme", EXTREMES)
def test_epsilon_is_a_number(extreme: tuple[float, float, int]) -> None:
    """Never NaN, never negative, and never more at a larger delta; by both accountants, and by the quick bound."""
    judged = mechanism(*extreme)
    takes_part = probability_of_taking_part([extreme[1]], num_rounds=extreme[2])
    deltas = sorted({1e-300, 1e-15, *(share * takes_part for share in (1e-3, 0.3))})
    by_delta = [
        (epsilon_of(judged, delta=delta), epsilon_bound(judged, delta=delta), rough_rdp_epsilon(judged, delta=delta))
        for delta in deltas
        if delta < 1
    ]
    for epsilons in zip(*by_delta, strict=True):
        assert all(epsilon >= 0 for epsilon in epsilons)
        assert list(epsilons) == sorted(epsilons, reverse=True)


@pytest.mark.parametrize("rate", [1e-12, 1e-7, 0.02, 0.7])
@pytest.mark.parametrize("rounds", [1, 50, 10**6])
def test_empty_promise_is_refused(rate: float, rounds: int) -> None:
    """At half the probability of taking part it is refused, the next smaller number passes; by an independent sum."""
    takes_part = probability_of_taking_part([rate], num_rounds=rounds)
    exact = Decimal(1) - (Decimal(1) - Decimal(rate)) ** rounds
    assert takes_part == pytest.approx(float(exact), rel=1e-12)
    case = {"sampling_rates": [rate], "num_rounds": rounds}
    for delta in (takes_part / 2, 0.99 * takes_part, min(takes_part, 0.999), min(2 * takes_part, 0.999)):
        with pytest.raises(PrivacyError, match="half of those who take part could be released in clear"):
            check_promises_something(delta=delta, **case)  # type: ignore[arg-type]
    check_promises_something(delta=math.nextafter(takes_part / 2, 0), **case)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="delta=nan"):
        check_promises_something(delta=math.nan, **case)  # type: ignore[arg-type]


def test_who_never_takes_part_loses_nothing() -> None:
    check_promises_something(delta=0.5, sampling_rates=[0.0], num_rounds=3)
    assert probability_of_taking_part([0.0], num_rounds=3) == 0
    assert probability_of_taking_part([1.0, 0.1], num_rounds=3) == 1
    assert probability_of_taking_part([0.1, 0.2], num_rounds=2) == pytest.approx(1 - 0.72**2)


def test_half_the_probability_is_where_clear_text_begins() -> None:
    """Releasing those who take part with probability 1/2 in clear keeps (0, p / 2), hence every epsilon at that delta:
    by the definition, over the three things that may be seen."""
    takes_part = probability_of_taking_part([0.02], num_rounds=50)
    # Seen: the client's data, or nothing; without the client, nothing.
    present, absent = (0.5 * takes_part, 1 - 0.5 * takes_part), (0.0, 1.0)
    assert sum(max(one - other, 0) for one, other in zip(present, absent, strict=True)) == 0.5 * takes_part


@pytest.mark.training
@pytest.mark.parametrize("extreme", [(0.05, 1e-7, 1), (0.3, 1e-5, 20), (40.0, 0.9, 1000), (1e5, 1e-3, 10**5)])
def test_extremes_stay_in_order(extreme: tuple[float, float, int]) -> None:
    """More noise, a smaller rate or fewer rounds never cost more, up to the width of the grid."""
    noise, rate, rounds = extreme
    delta = 0.1 * probability_of_taking_part([rate], num_rounds=rounds)
    cost = epsilon_of(mechanism(*extreme), delta=delta)
    for less in ((1.3 * noise, rate, rounds), (noise, rate / 1.3, rounds), (noise, rate, max(rounds // 2, 1))):
        assert epsilon_of(mechanism(*less), delta=delta) <= 1.001 * cost + 1e-4
