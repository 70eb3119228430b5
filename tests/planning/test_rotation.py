import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.rotation import asked_positions, is_asked, largest_roster, most_asks, public_order, smallest_roster
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact

SETTINGS = PlanSettings(method="gdpfed", num_rounds=6, against="server", asks=3, trainings=1.5)


def base() -> Plan:
    return make_plan(parse_compact("5@1,4@3"), SETTINGS)


PLAN = base()


def rotating(asks: int, num_rounds: int) -> Plan:
    groups = tuple(dataclasses.replace(group, asked=asks / num_rounds) for group in PLAN.groups)
    return dataclasses.replace(PLAN, asks=asks, num_rounds=num_rounds, groups=groups)


@st.composite
def rotations(draw: st.DrawFn) -> tuple[Plan, int]:
    num_rounds = draw(st.integers(1, 60))
    return rotating(draw(st.integers(1, num_rounds)), num_rounds), draw(st.integers(1, 50))


@given(rotations())
@settings(max_examples=200, deadline=None)
def test_everybody_is_asked_equally_often(case: tuple[Plan, int]) -> None:
    plan, size = case
    counts: Counter[int] = Counter()
    for round_number in range(plan.num_rounds):
        asked = asked_positions(plan, size, round_number=round_number).tolist()
        assert len(set(asked)) == len(asked)
        counts.update(asked)
        for position in range(size):
            assert is_asked(plan, size, position=position, round_number=round_number) == (position in asked)
    assert [counts[position] for position in range(size)] == [plan.asks] * size


@given(rotations())
@settings(max_examples=100, deadline=None)
def test_rosters_are_nearly_constant(case: tuple[Plan, int]) -> None:
    plan, size = case
    sizes = [len(asked_positions(plan, size, round_number=number)) for number in range(plan.num_rounds)]
    assert max(sizes) - min(sizes) <= 1
    group = dataclasses.replace(plan.groups[0], num_clients=size)
    assert max(sizes) <= largest_roster(plan, [group]) <= max(sizes) + 1
    assert smallest_roster(plan, [group]) <= max(1, min(sizes))


@given(rotations())
@settings(max_examples=100, deadline=None)
def test_asks_are_spread(case: tuple[Plan, int]) -> None:
    plan, size = case
    rounds = [
        [number for number in range(plan.num_rounds) if is_asked(plan, size, position=position, round_number=number)]
        for position in range(size)
    ]
    between = plan.num_rounds // plan.num_releases
    assert all(np.diff(asked).min(initial=between) >= between for asked in rounds)


@given(rotations())
@settings(max_examples=100, deadline=None)
def test_asks_so_far_are_counted(case: tuple[Plan, int]) -> None:
    plan, size = case
    group = dataclasses.replace(plan.groups[0], num_clients=size)
    counts: Counter[int] = Counter()
    for round_number in range(plan.num_rounds):
        counts.update(asked_positions(plan, size, round_number=round_number).tolist())
        assert most_asks(plan, group, rounds=round_number + 1) == max(counts.values(), default=0)
    assert most_asks(plan, group, rounds=plan.num_rounds) == plan.asks


def test_the_order_is_public() -> None:
    clients = list(range(100, 160))
    order = public_order(clients, seed=7)
    assert sorted(order.tolist()) == clients
    assert np.array_equal(order, public_order(reversed(clients), seed=7))
    assert not np.array_equal(order, public_order(clients, seed=8))
    # Written down once: nodes with other versions of anything must come to the same order.
    assert public_order(range(6), seed=1).tolist() == [4, 5, 3, 0, 1, 2]


@pytest.mark.parametrize(("asks", "num_rounds", "sizes"), [(10, 50, {400}), (7, 50, {280}), (3, 50, {120})])
def test_the_presets_rosters(asks: int, num_rounds: int, sizes: set[int]) -> None:
    plan = rotating(asks, num_rounds)
    assert {len(asked_positions(plan, 2000, round_number=number)) for number in range(num_rounds)} == sizes
