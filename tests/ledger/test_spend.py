import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.ledger.spend import fits, merged, rounds_that_fit, spent, strictest
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of, gaussian_epsilon
from tests.ledger.books import oracle

DELTA = 1e-4


def rounds(noise: float, rate: float, count: int) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=count)


def test_one_mechanism_is_the_accountants() -> None:
    assert spent([], delta=DELTA) == 0
    assert spent([rounds(1.1, 0.05, 30)], delta=DELTA) == epsilon_of(rounds(1.1, 0.05, 30), delta=DELTA)
    # Rounds of one kind are counted together, in whatever order they came.
    parts = [rounds(1.1, 0.05, 10), rounds(2.0, 0.1, 3), rounds(1.1, 0.05, 20), rounds(2.0, 0.1, 4)]
    assert merged(parts) == (rounds(1.1, 0.05, 30), rounds(2.0, 0.1, 7)) == merged(reversed(parts))
    assert spent([rounds(0.0, 0.5, 1), rounds(1.0, 0.5, 1)], delta=DELTA) == float("inf")
    assert spent([rounds(0.0, 0.0, 9)], delta=DELTA) == 0


@pytest.mark.parametrize(
    "events",
    [
        [(1.5, 0.05, 30), (2.0, 0.1, 20), (3.0, 0.2, 5)],
        [(1.5, 0.05, 10), (8.0, 1.0, 5)],
    ],
)
def test_composition_equals_dp_accounting(events: list[tuple[float, float, int]]) -> None:
    ours = spent([rounds(*event) for event in events], delta=DELTA)
    theirs = oracle(events, DELTA)
    assert ours == pytest.approx(theirs, rel=1e-3)
    # Ours is on a grid of its own: never more than its rounding below.
    assert ours >= theirs * (1 - 1e-4)


def test_composition_is_below_adding() -> None:
    one, other = rounds(1.0, 0.05, 30), rounds(2.0, 0.1, 20)
    costs = [spent([event], delta=DELTA) for event in (one, other)]
    both = spent([one, other], delta=DELTA)
    assert max(costs) < both < 0.9 * sum(costs)
    unsampled = [rounds(5.0, 1.0, 4), rounds(10.0, 1.0, 16)]
    assert spent(unsampled, delta=DELTA) == pytest.approx(
        gaussian_epsilon(noise_multiplier=5.0, num_releases=8, delta=DELTA), rel=1e-12
    )


def test_rounds_that_fit_leave_no_room() -> None:
    past = [rounds(1.0, 0.05, 30)]
    budgets = ((2.5, DELTA), (3.0, DELTA / 10))
    count = rounds_that_fit(past, rounds(2.0, 0.1, 1), budgets=budgets, at_most=500)
    assert 1 < count < 500
    assert fits([*past, rounds(2.0, 0.1, count)], budgets)
    assert not fits([*past, rounds(2.0, 0.1, count + 1)], budgets)
    assert rounds_that_fit(past, rounds(2.0, 0.1, 1), budgets=budgets, at_most=count - 1) == count - 1
    assert rounds_that_fit(past, rounds(2.0, 0.1, 1), budgets=((0.1, DELTA),), at_most=9) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.sampled_from([1e-6, 1e-5, 1e-4])), min_size=1))
def test_only_the_strictest_matter(budgets: list[tuple[float, float]]) -> None:
    kept = strictest(np.array([b[0] for b in budgets]), np.array([b[1] for b in budgets]))
    for epsilon, delta in budgets:
        assert any(one <= epsilon and other <= delta for one, other in kept)
    for one in kept:
        assert one in budgets
        assert not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in kept)
