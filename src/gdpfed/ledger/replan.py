"""A plan for the rounds that are left, within what is left of the budgets.

Place: between the ledger and the planner, when a run was lost to kills, when budgets were tightened, or when groups
have stopped. For each class of clients: how strict must a fresh mechanism be, so that it fits after all that they have
spent? That is their remaining budget (not the difference of epsilons, which would waste much of it); the planner plans
for it as for any budget, and the result is let in like any run.

Guarantees (tests of the same name):
  the_rest_fits           the plan is let in by the ledger as it stands, and leaves out who has nothing left.
  more_than_subtraction   what is left is more than the difference of the epsilons.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import PrivacyError
from gdpfed.ledger.admission import check_admission
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.population import IntArray, Population, grouped
from gdpfed.ledger.spend import Budget, History, fits, strictest
from gdpfed.ledger.state import LedgerState
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.budgets import Budgets

__all__ = ["plan_the_rest", "remaining_epsilon"]

# Searched noise multipliers, and how close the search comes.
_LEAST_NOISE, _MOST_NOISE, _CLOSE = 0.3, 3000.0, 1.002
# A remaining budget below this is none.
_LEAST_EPSILON = 1e-3
# A class with more distinct budgets than this is planned by the strictest of each so many neighbours.
_MOST_PARTS = 32
# Rates differ from the assumed one, and so does what composes with the past: lowered until it fits.
_LOWERED, _TIMES = 0.98, 20


def remaining_epsilon(history: History, budgets: tuple[Budget, ...], *, sampling_rate: float, num_rounds: int) -> float:
    """The epsilon of the least noisy mechanism of such a rate and so many rounds that fits after ``history``; 0 if none
    does. At the smallest delta of the budgets."""
    delta = min(delta for _, delta in budgets)

    def mechanism(noise: float) -> SampledGaussian:
        return SampledGaussian(noise_multiplier=noise, sampling_rate=sampling_rate, num_rounds=num_rounds)

    low, high = _LEAST_NOISE, _MOST_NOISE
    if not fits([*history, mechanism(high)], budgets):
        return 0.0
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits([*history, mechanism(middle)], budgets) else (middle, high)
    return epsilon_of(mechanism(high), delta=delta)


def _alike(population: Population, members: IntArray) -> Iterator[IntArray]:
    """Members of a class in parts of equal epsilon; of neighbouring ones where there are many."""
    values, inverse = np.unique(population.epsilons[members], return_inverse=True)
    for _, part in grouped(inverse * min(len(values), _MOST_PARTS) // len(values)):
        yield members[part]


def plan_the_rest(
    state: LedgerState, population: Population, settings: PlanSettings, *, clients: IntArray | None = None
) -> tuple[Plan, NDArray[np.int16]]:
    """A plan with ``settings`` (its rounds are those that are left) for the clients that have budget left, and each
    client's group (-1: left out), ready for `Ledger.start_run`.

    Close the run that it replaces first: rounds that an open run holds are not there to be planned.
    """
    candidates = np.flatnonzero(~population.has_left)
    if clients is not None:
        candidates = np.intersect1d(candidates, clients)
    epsilons = np.zeros(len(population))
    for number, of_class in grouped(population.class_of[candidates]):
        for members in _alike(population, candidates[of_class]):
            epsilons[members] = remaining_epsilon(
                state.promised(population, number),
                strictest(population.epsilons[members], population.deltas[members]),
                sampling_rate=settings.participation,
                num_rounds=settings.num_rounds,
            )
    chosen = np.flatnonzero(epsilons > _LEAST_EPSILON)
    if not len(chosen):
        raise PrivacyError(f"nobody in population {population.name!r} has budget left: nothing can be planned")
    for _ in range(_TIMES):
        budgets = Budgets(epsilons=epsilons[chosen], deltas=population.deltas[chosen])
        plan = make_plan(budgets, settings)
        groups = np.full(len(population), -1, dtype=np.int16)
        groups[chosen] = assign(plan, budgets)
        try:
            check_admission(state, population, plan, groups, run="the rest")
        except ExhaustedError:
            epsilons *= _LOWERED
            continue
        return plan, groups
    raise PrivacyError(f"no plan of {settings.num_rounds} rounds fits what is left: plan fewer rounds")
