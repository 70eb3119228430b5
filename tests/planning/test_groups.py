import itertools
import math
import time

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning import groups as grouping
from gdpfed.planning.groups import (
    Grouping,
    GroupValue,
    choose_groups,
    group_at_edges,
    group_by_distinct,
    group_everyone,
    group_given,
    pooled_value,
    separate_value,
)
from gdpfed.privacy.budgets import Budgets, parse_compact


def population(epsilons: np.ndarray, groups: tuple[str, ...] | None = None) -> Budgets:
    return Budgets(epsilons=np.asarray(epsilons, dtype=float), deltas=np.full(len(epsilons), math.nan), groups=groups)


def curve(epsilons: np.ndarray) -> np.ndarray:
    """Falling noise, as a stand-in for the calibrated curve."""
    return 0.4 + 1.0 / epsilons**0.7


def value_of(found: Grouping, value: GroupValue) -> float:
    return float(value(np.array(found.sizes, dtype=float), 1 / curve(np.array(found.epsilons))).sum())


def brute_force(epsilons: np.ndarray, max_groups: int, min_size: int, value: GroupValue) -> float:
    distinct, counts = np.unique(epsilons, return_counts=True)
    best = -math.inf
    for number in range(1, min(max_groups, len(distinct)) + 1):
        for inner in itertools.combinations(range(1, len(distinct)), number - 1):
            edges = [0, *inner, len(distinct)]
            sizes = [int(counts[a:b].sum()) for a, b in itertools.pairwise(edges)]
            if min(sizes) >= min_size:
                noise = curve(distinct[edges[:-1]])
                best = max(best, float(value(np.array(sizes, dtype=float), 1 / noise).sum()))
    return best


@pytest.mark.parametrize("value", [pooled_value, separate_value])
def test_chosen_equals_brute_force(value: GroupValue) -> None:
    generator = np.random.default_rng(20)
    for _ in range(1000):
        num_clients = int(generator.integers(1, 40))
        epsilons = generator.choice(np.round(generator.uniform(0.1, 10, size=7), 2), size=num_clients)
        max_groups = int(generator.integers(1, 6))
        min_size = int(generator.integers(1, num_clients + 1))
        found = choose_groups(
            population(epsilons), 1e-5, max_groups=max_groups, noise_curve=curve, value=value, min_size=min_size
        )
        assert len(found.sizes) <= max_groups
        assert min(found.sizes) >= min_size
        assert value_of(found, value) == pytest.approx(brute_force(epsilons, max_groups, min_size, value), rel=1e-9)


@pytest.mark.parametrize("value", [pooled_value, separate_value])
def test_hundred_thousand_distinct_budgets_within_ten_seconds(value: GroupValue) -> None:
    epsilons = np.random.default_rng(3).lognormal(0.3, 0.8, size=100_000)
    started = time.perf_counter()
    found = choose_groups(population(epsilons), 1e-6, max_groups=8, noise_curve=curve, value=value, min_size=500)
    assert time.perf_counter() - started < 10
    assert sum(found.sizes) == 100_000
    assert min(found.sizes) >= 500


@pytest.mark.parametrize("value", [pooled_value, separate_value])
def test_thinned_search_loses_nothing_to_speak_of(value: GroupValue, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 distinct budgets: the exact answer, against 100 quantiles with boundaries moved afterwards."""
    budgets = population(np.random.default_rng(5).lognormal(0.3, 0.8, size=1500))
    arguments = {"max_groups": 5, "noise_curve": curve, "value": value, "min_size": 20}
    exact = choose_groups(budgets, 1e-6, **arguments)  # type: ignore[arg-type]
    monkeypatch.setattr(grouping, "MAX_CANDIDATES", 100)
    thinned = choose_groups(budgets, 1e-6, **arguments)  # type: ignore[arg-type]
    assert value_of(thinned, value) <= value_of(exact, value) * (1 + 1e-9)
    assert value_of(thinned, value) >= value_of(exact, value) * (1 - 1e-5)


def every_rule(budgets: Budgets) -> list[Grouping]:
    return [
        group_everyone(budgets, 1e-5),
        group_given(budgets, 1e-5),
        group_by_distinct(budgets, 1e-5),
        group_by_distinct(budgets, 1e-5, min_size=30),
        group_at_edges(budgets, 1e-5, [0.1, 1.0, 4.0]),
        choose_groups(budgets, 1e-5, max_groups=4, noise_curve=curve, value=pooled_value),
        choose_groups(budgets, 1e-5, max_groups=4, noise_curve=curve, value=separate_value, min_size=25),
    ]


def random_budgets(seed: int) -> Budgets:
    generator = np.random.default_rng(seed)
    epsilons = generator.choice(np.round(generator.uniform(0.2, 8, size=12), 2), size=200)
    deltas = np.where(generator.random(200) < 0.2, generator.uniform(1e-7, 1e-4, size=200), math.nan)
    return Budgets(epsilons=epsilons, deltas=deltas, groups=tuple(generator.choice(["x", "y", "z"], size=200)))


@pytest.mark.parametrize("seed", range(5))
def test_nobody_gets_less_than_asked(seed: int) -> None:
    budgets = random_budgets(seed)
    for found in every_rule(budgets):
        assert (np.array(found.epsilons)[found.assignment] <= budgets.epsilons).all()
        assert (np.array(found.deltas)[found.assignment] <= budgets.deltas_or(1e-5)).all()
        assert np.bincount(found.assignment).tolist() == list(found.sizes)
        waste = budgets.epsilons - np.array(found.epsilons)[found.assignment]
        for place in range(len(found.sizes)):
            assert found.groups[place].mean_waste == pytest.approx(waste[found.assignment == place].mean())
            assert found.groups[place].max_waste == pytest.approx(waste[found.assignment == place].max())


@pytest.mark.parametrize("min_size", [1, 10, 40, 100, 200])
def test_minimum_size_is_kept(min_size: int) -> None:
    budgets = random_budgets(1)
    for found in (
        group_by_distinct(budgets, 1e-5, min_size=min_size),
        choose_groups(budgets, 1e-5, max_groups=6, noise_curve=curve, value=pooled_value, min_size=min_size),
    ):
        assert min(found.sizes) >= min_size


def test_small_groups_join_the_stricter_neighbour() -> None:
    found = group_by_distinct(parse_compact("50@1,3@2,50@3,2@9"), 1e-5, min_size=10)
    assert found.sizes == (53, 52)
    assert found.epsilons == (1.0, 3.0)
    strict_and_small = group_by_distinct(parse_compact("3@1,50@2,50@3"), 1e-5, min_size=10)
    assert strict_and_small.epsilons == (1.0, 3.0)
    assert strict_and_small.sizes == (53, 50)


def test_order_does_not_matter() -> None:
    budgets = random_budgets(2)
    order = np.random.default_rng(0).permutation(len(budgets))
    assert budgets.groups is not None
    shuffled = Budgets(
        epsilons=budgets.epsilons[order],
        deltas=budgets.deltas[order],
        groups=tuple(budgets.groups[index] for index in order),
    )
    for before, after in zip(every_rule(budgets), every_rule(shuffled), strict=True):
        assert after.assignment.tolist() == before.assignment[order].tolist()
        assert after.epsilons == before.epsilons


def test_splitting_can_be_a_loss_where_each_group_has_its_own_noise() -> None:
    """Nearly equal budgets: one noise draw is better than two; pooled, a split costs nothing."""
    budgets = parse_compact("100@1,100@1.01")
    for value in (separate_value, pooled_value):
        found = choose_groups(budgets, 1e-5, max_groups=2, noise_curve=curve, value=value)
        assert len(found.sizes) == (1 if value is separate_value else 2)


def test_a_large_block_at_the_top() -> None:
    """Most clients at one budget, thousands of others: the quantiles must not run off the end."""
    epsilons = np.concatenate([np.linspace(0.5, 8, 3000), np.full(100_000, 9.0)])
    found = choose_groups(population(epsilons), 1e-6, max_groups=4, noise_curve=curve, value=pooled_value)
    assert sum(found.sizes) == 103_000
    assert found.epsilons[-1] == 9.0


def test_given_groups_are_sorted_and_named() -> None:
    found = group_given(population(np.array([3.0, 1.0, 2.0, 5.0]), ("lab", "ward", "lab", "home")), 1e-5)
    assert [group.name for group in found.groups] == ["ward", "lab", "home"]
    assert found.epsilons == (1.0, 2.0, 5.0)
    assert found.assignment.tolist() == [1, 0, 1, 2]


def test_bad_input_is_refused() -> None:
    budgets = parse_compact("5@1,5@2")
    with pytest.raises(InputError, match="column 'group'"):
        group_given(budgets, 1e-5)
    with pytest.raises(PrivacyError, match="below the strictest"):
        group_at_edges(budgets, 1e-5, [1.5])
    with pytest.raises(InputError, match="finite group epsilons"):
        group_at_edges(budgets, 1e-5, [0.0, 1.0])
    with pytest.raises(InputError, match="min_group_size"):
        group_by_distinct(budgets, 1e-5, min_size=11)
    with pytest.raises(InputError, match="min_group_size=6"):
        group_at_edges(budgets, 1e-5, [1.0, 2.0], min_size=6)
    with pytest.raises(InputError, match="min_group_size=3 clients, got 1"):
        group_given(population(np.array([1.0, 2, 3, 4]), ("a", "a", "a", "b")), 1e-5, min_size=3)
    with pytest.raises(InputError, match="distinct budgets is more than"):
        group_by_distinct(population(np.linspace(1, 2, 1001)), 1e-5)
    with pytest.raises(InputError, match="at least one group"):
        choose_groups(budgets, 1e-5, max_groups=0, noise_curve=curve, value=pooled_value)
