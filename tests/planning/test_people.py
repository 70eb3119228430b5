"""Who is in which group, and that no group costs a member more than it allows."""

import dataclasses
import math

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign, check_budgets
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, parse_compact

Small = tuple[Budgets, PlanSettings]


@pytest.mark.training
@pytest.mark.parametrize("seed", range(8))
def test_assignment_never_overspends(small: Small, seed: int) -> None:
    """Clients with random budgets, in any order, are in no group that costs more; a stricter client is refused."""
    generator = np.random.default_rng(seed)
    epsilons = np.exp(generator.uniform(np.log(0.5), np.log(8), size=40))
    budgets = Budgets(epsilons=epsilons, deltas=np.full(40, math.nan))
    plan = make_plan(budgets, dataclasses.replace(small[1], method="gdpfed", groups="auto"))
    place = assign(plan, budgets)
    costs = np.array([group.epsilon for group in plan.groups])
    assert (costs[place] <= epsilons).all()
    order = generator.permutation(40)
    again = assign(plan, dataclasses.replace(budgets, epsilons=epsilons[order]))
    assert again.tolist() == place[order].tolist()
    lower = epsilons.copy()
    strictest = int(np.argmin(epsilons))
    lower[strictest] *= 0.99
    with pytest.raises(PrivacyError, match="less than every group"):
        assign(plan, dataclasses.replace(budgets, epsilons=lower))


def test_assign_follows_the_budgets(small: Small) -> None:
    budgets, settings = small
    plan = make_plan(budgets, settings)
    assert np.bincount(assign(plan, budgets)).tolist() == [60, 90, 50]
    with pytest.raises(PrivacyError, match="less than every group"):
        assign(plan, parse_compact("1@0.9,59@1,90@2,50@6"))
    with pytest.raises(PrivacyError, match="was planned for 60 clients, these budgets put 61"):
        assign(plan, parse_compact("61@1,90@2,50@6"))
    strict_delta = Budgets(epsilons=budgets.epsilons, deltas=np.r_[1e-9, np.full(199, math.nan)])
    with pytest.raises(PrivacyError, match="more than client '0' allows"):
        assign(plan, strict_delta)


def test_assign_by_given_groups() -> None:
    budgets = Budgets(epsilons=np.array([5.0, 1, 2, 1]), deltas=np.full(4, math.nan), groups=("a", "b", "b", "a"))
    plan = make_plan(
        budgets, PlanSettings(method="gdpfed", groups="given", num_rounds=2, participation=0.5, delta=1e-3)
    )
    assert [plan.groups[place].name for place in assign(plan, budgets)] == ["a", "b", "b", "a"]
    with pytest.raises(InputError, match="column 'group'"):
        assign(plan, parse_compact("4@1"))
    with pytest.raises(InputError, match="no group 'c'"):
        assign(plan, dataclasses.replace(budgets, groups=("a", "b", "c", "a")))


def test_check_budgets_looks_at_delta(small: Small) -> None:
    plan = make_plan(small[0], dataclasses.replace(small[1], delta=1e-3))
    check_budgets(plan, small[0], default_delta=1e-3)
    with pytest.raises(PrivacyError, match="has delta=1e-03"):
        check_budgets(plan, small[0], default_delta=1e-4)
