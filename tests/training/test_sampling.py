"""Who takes part. The checks are in checkers.py, with their false-alarm rates and what they can see."""

import dataclasses

import numpy as np
import pytest
import torch

from gdpfed.planning.plan import Plan
from gdpfed.training.rounds import IntArray, TrainingState
from gdpfed.training.sampling import sample_clients, simulated, system_coins, tossed
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


def state(round_number: int, num_clients: int) -> TrainingState:
    nobody = np.zeros(num_clients, dtype=np.int64)
    return TrainingState(round_number=round_number, parameters=torch.zeros(1), participations=nobody)


def trained_clients(plan: Plan, groups: IntArray, *, round_number: int, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Who is asked, and who of them trains."""
    now = state(round_number, len(groups))
    asked = simulated(plan, groups, seed=seed)(now)
    training = tossed(lambda _, clients: iter([(clients, torch.zeros(len(clients), 1))]), plan, groups, seed=seed)
    ((trained, _),) = training(now, asked)
    return asked, trained


def test_everybody_asked_is_poisson() -> None:
    plan, always = plan_of("pooled"), plan_of("pooled", asks=4)
    groups = assignment(plan)
    for round_number in range(4):
        asked, trained = trained_clients(always, groups, round_number=round_number)
        poisson, all_of_them = trained_clients(plan, groups, round_number=round_number)
        assert len(asked) == len(groups)
        assert np.array_equal(trained, poisson)
        assert np.array_equal(poisson, all_of_them)


def test_coins_are_not_in_the_roster() -> None:
    """Every client is asked as often as the plan says, whatever its coins; and a coin is as good as its rate.

    400 seeds of 3 asks for each of 40 clients: 48,000 coins, of which the share that says yes is within 5 standard
    deviations of the plan's, and a yes in one round says nothing of the next.
    """
    plan = plan_of("pooled", asks=3)
    groups = assignment(plan)
    rates = np.array([group.sampling_rate for group in plan.groups])
    asks, yes = np.zeros((400, len(groups))), np.zeros((400, len(groups)))
    for seed in range(400):
        for round_number in range(4):
            asked, trained = trained_clients(plan, groups, round_number=round_number, seed=seed)
            assert set(trained) <= set(asked)
            asks[seed, asked] += 1
            yes[seed, trained] += 1
    assert (asks == 3).all()
    for number, rate in enumerate(rates):
        mine = yes[:, groups == number]
        mean, deviation = 3 * rate, np.sqrt(3 * rate * (1 - rate) / mine.size)
        assert abs(mine.mean() - mean) < 5 * deviation
        # Of three independent coins; one coin for all of them would have three times this variance.
        assert mine.var() < 1.5 * 3 * rate * (1 - rate)
