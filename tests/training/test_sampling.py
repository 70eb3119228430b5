"""Who takes part. The checks are in checkers.py, with their false-alarm rates and what they can see."""

import dataclasses

import numpy as np
import pytest

from gdpfed.planning.plan import Plan
from gdpfed.training.sampling import sample_clients, system_coins
from tests.training import checkers
from tests.training.worlds import changed, plan_of


@pytest.fixture
def plan() -> Plan:
    """Groups large enough that a cohort's size is all but normal."""
    return changed(plan_of("gdpfed-opc"), lambda group: {"num_clients": 25 * group.num_clients})


def assignment(plan: Plan) -> np.ndarray:
    """Groups mixed, so that neighbours are of different groups too."""
    groups = np.repeat(np.arange(len(plan.groups)), [group.num_clients for group in plan.groups])
    return np.random.default_rng(0).permutation(groups)


def test_cohort_is_poisson(plan: Plan) -> None:
    """Mean and variance of each group's cohort: SAMPLE_ROUNDS rounds, false alarms 1e-6, a fixed size always seen."""
    checkers.check_sampler(sample_clients, plan, assignment(plan))


def test_coins_are_independent(plan: Plan) -> None:
    """Between any two rounds and any two clients: correlations of all pairs at once, by their largest.

    60 rounds of 1,000 clients: the largest of 1,770 standard normal numbers exceeds 6.4 with a probability below 1e-6.
    """
    groups = assignment(plan)
    rates = np.array([group.sampling_rate for group in plan.groups])[groups]
    nobody = np.zeros(len(groups), dtype=np.int64)
    coins = np.zeros((60, len(groups)))
    for round_number in range(60):
        coins[round_number, sample_clients(plan, groups, nobody, seed=7, round_number=round_number)] = 1
    coins = (coins - rates) / np.sqrt(rates * (1 - rates))
    between_rounds = coins @ coins.T / np.sqrt(len(groups))
    assert np.abs(between_rounds[~np.eye(60, dtype=bool)]).max() < 6.4
    other = np.zeros((60, len(groups)))
    for round_number in range(60):
        other[round_number, sample_clients(plan, groups, nobody, seed=8, round_number=round_number)] = 1
    other = (other - rates) / np.sqrt(rates * (1 - rates))
    assert abs((coins * other).sum()) / np.sqrt(coins.size) < 4.9


def test_cap_is_kept(plan: Plan) -> None:
    capped = dataclasses.replace(plan, max_participations=2)
    groups = assignment(plan)
    counts = np.zeros(len(groups), dtype=np.int64)
    for round_number in range(30):
        free = sample_clients(plan, groups, counts, seed=1, round_number=round_number)
        chosen = sample_clients(capped, groups, counts, seed=1, round_number=round_number)
        # The cap takes clients away; it never changes another's coin.
        assert np.array_equal(chosen, free[counts[free] < 2])
        counts[chosen] += 1
    assert counts.max() == 2
    assert (counts == 2).mean() > 0.9


def test_a_cohort_is_sorted_and_reproducible(plan: Plan) -> None:
    groups = assignment(plan)
    nobody = np.zeros(len(groups), dtype=np.int64)
    one = sample_clients(plan, groups, nobody, seed=1, round_number=3)
    assert np.array_equal(one, sample_clients(plan, groups, nobody, seed=1, round_number=3))
    assert (np.diff(one) > 0).all()
    everybody = changed(plan, lambda _: {"sampling_rate": 1.0})
    assert len(sample_clients(everybody, groups, nobody, seed=1, round_number=3)) == len(groups)


def test_system_coins_are_fair() -> None:
    """Mean and variance of a million coins to 5 standard errors; two draws have nothing in common."""
    coins = system_coins(1_000_000)
    assert ((coins >= 0) & (coins < 1)).all()
    assert abs(coins.mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(coins))
    assert abs(coins.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / len(coins))
    assert not np.isin(system_coins(1000), coins[:1000]).any()
