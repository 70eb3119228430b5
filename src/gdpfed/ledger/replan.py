"""A plan for what is left of the budgets.

Place: between the ledger and the planner: after a run, when one was lost to kills, when budgets were tightened, or when
groups have stopped. For each class of clients: how strict must a fresh mechanism be, so that it fits after all that
they have spent? That is what they have left (not the difference of epsilons, which would waste much of it); the planner
plans for it as for any budget, and the result is let in like any run.

A group of such a plan promises what its strictest client allows over all runs, and costs what is left of that: so
groups follow from the clients' budgets wherever the plan is used. Where they cannot, because clients with equal budgets
have different pasts, or because some have nothing left, the groups are given by name (`rest_of`).

Guarantees (tests of the same name):
  the_rest_fits           the plan is let in by the ledger as it stands, and leaves out who has nothing left.
  more_than_subtraction   what is left is more than the difference of the epsilons.
  whole_budgets_find_the_groups   of such a plan, or its groups are given.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import GdpfedError, PrivacyError
from gdpfed.ledger.admission import check_admission, rounds_left, what_is_held
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.population import IntArray, Population, grouped
from gdpfed.ledger.spend import Budget, History, strictest, surely_fits
from gdpfed.ledger.state import LedgerState
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.budgets import Budgets

__all__ = ["Rest", "epsilon_left", "plan_the_rest", "remaining_epsilon", "rest_of"]

# Searched noise multipliers, and how close the search comes.
_LEAST_NOISE, _MOST_NOISE, _CLOSE = 0.3, 3000.0, 1.002
# A remaining budget below this is none.
_LEAST_EPSILON = 1e-3
# A class with more distinct budgets than this is planned by the strictest of each so many neighbours.
_MOST_PARTS = 32
# What composes with the past depends on the rates, which depend on it: lowered until it fits.
_LOWERED, _TIMES = 0.99, 40


def remaining_epsilon(history: History, budgets: tuple[Budget, ...], *, like: SampledGaussian) -> float:
    """The epsilon of the least noisy mechanism with the rate and rounds of ``like`` that fits after ``history``; 0 if
    none does. At the smallest delta of the budgets."""

    def surely(noise: float) -> bool:
        return surely_fits([*history, dataclasses.replace(like, noise_multiplier=noise)], budgets)

    low, high = _LEAST_NOISE, _MOST_NOISE
    if not surely(high):
        return 0.0
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if surely(middle) else (middle, high)
    return epsilon_of(dataclasses.replace(like, noise_multiplier=high), delta=min(delta for _, delta in budgets))


def _alike(*numbers: NDArray[np.float64]) -> Iterator[IntArray]:
    """Places of equal numbers; of neighbouring ones where there are many."""
    values, inverse = np.unique(np.stack(numbers, axis=1), axis=0, return_inverse=True)
    for _, part in grouped(inverse.ravel() * min(len(values), _MOST_PARTS) // len(values)):
        yield part


def epsilon_left(
    state: LedgerState, population: Population, clients: IntArray, *, like: SampledGaussian
) -> NDArray[np.float64]:
    """What a further run with the rate and rounds of ``like`` could cost each of these clients, after all that is spent
    and promised: `remaining_epsilon`, or the whole budget of who has no past; 0 for who has left."""
    for run in state.runs_of(population):
        # Where a budget was tightened, it holds fewer than before.
        rounds_left(state, run)
    epsilons, deltas = population.epsilons[clients], population.deltas[clients]
    left = epsilons.copy()
    for number, of_class in grouped(population.class_of[clients]):
        history = state.promised(population, number)
        for part in _alike(epsilons[of_class], deltas[of_class]) if history else ():
            members = of_class[part]
            left[members] = remaining_epsilon(history, strictest(epsilons[members], deltas[members]), like=like)
    left[population.has_left[clients]] = 0.0
    return left


def plan_the_rest(state: LedgerState, population: Population, settings: PlanSettings) -> tuple[Plan, NDArray[np.int16]]:
    """A plan with ``settings`` (its rounds are those that are left) for the clients that have budget left, and each
    client's group (-1: left out), ready for `Ledger.start_run`.

    Close the run that it replaces first: rounds that an open run holds are not there to be planned.
    """
    like = SampledGaussian(noise_multiplier=1.0, sampling_rate=settings.participation, num_rounds=settings.num_rounds)
    epsilons = epsilon_left(state, population, np.arange(len(population)), like=like)
    chosen = np.flatnonzero(epsilons > _LEAST_EPSILON)
    if not len(chosen):
        held = what_is_held(state, population)
        raise PrivacyError(f"nobody in population {population.name!r} has budget left: nothing can be planned{held}")
    names = None if population.labels is None else tuple(map(population.label, chosen.tolist()))
    for attempt in range(_TIMES):
        budgets = Budgets(epsilons=epsilons[chosen], deltas=population.deltas[chosen], clients=names)
        plan = make_plan(budgets, settings)
        groups = np.full(len(population), -1, dtype=np.int16)
        groups[chosen] = assign(plan, budgets)
        try:
            check_admission(state, population, plan, groups, run="the rest")
        except ExhaustedError:
            if attempt:
                epsilons *= _LOWERED
                continue
            # Once more with the groups' own rates.
            for number, group in enumerate(plan.groups):
                members = np.flatnonzero(groups == number)
                epsilons[members] = epsilon_left(state, population, members, like=plan.mechanism(group))
            continue
        return plan, groups
    raise PrivacyError(f"no plan of {settings.num_rounds} rounds fits what is left: plan fewer rounds")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rest:
    """A plan for what is left, and the budgets over all runs of who takes part.

    These have groups by name where the plan's groups do not follow from the budgets (``plan.grouping`` is "given").
    """

    plan: Plan
    budgets: Budgets
    left_out: int


def rest_of(state: LedgerState, population: Population, settings: PlanSettings) -> Rest:
    """`plan_the_rest`, as others than the ledger use it; ``left_out`` counts who is there and has nothing left."""
    plan, groups = plan_the_rest(state, population, settings)
    chosen = np.flatnonzero(groups >= 0)
    left_out = int((~population.has_left).sum()) - len(chosen)
    budgets = population.budgets_of(chosen)
    whole = dataclasses.replace(
        plan,
        groups=tuple(
            dataclasses.replace(group, epsilon=float(population.epsilons[groups == number].min()))
            for number, group in enumerate(plan.groups)
        ),
    )
    try:
        follows = not left_out and np.array_equal(assign(whole, budgets), groups[chosen])
    except GdpfedError:
        follows = False
    if follows:
        return Rest(plan=whole, budgets=budgets, left_out=0)
    named = tuple(plan.groups[number].name for number in groups[chosen])
    return Rest(
        plan=dataclasses.replace(whole, grouping="given"),
        budgets=dataclasses.replace(budgets, groups=named),
        left_out=left_out,
    )
