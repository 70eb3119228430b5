"""Small ledgers and plans for the tests."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from gdpfed.ledger.book import Ledger, publish
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, parse_compact

POPULATION = "60@1,90@2,50@6"
TWO = "100@1,100@2"
DELTA = 1e-3


@functools.cache
def plan_for(text: str = POPULATION, *, rounds: int = 10, method: str = "gdpfed", cap: int | None = None) -> Plan:
    """A plan that is made once for all tests."""
    settings = PlanSettings(num_rounds=rounds, participation=0.2, method=method, delta=DELTA, max_participations=cap)
    return make_plan(parse_compact(text), settings)


def scaled(text: str, factor: float) -> Budgets:
    """The same clients with budgets ``factor`` times as large."""
    budgets = parse_compact(text)
    return dataclasses.replace(budgets, epsilons=budgets.epsilons * factor)


def book(folder: Path, *, text: str = POPULATION, factor: float = 1.0, name: str = "book") -> Ledger:
    """A ledger with one population, ``people``."""
    ledger = Ledger.create(folder / name)
    ledger.add_population("people", scaled(text, factor), default_delta=DELTA)
    return ledger


def groups_of(plan: Plan, text: str = POPULATION) -> np.ndarray[Any, np.dtype[np.int64]]:
    return assign(plan, parse_compact(text))


def start(ledger: Ledger, run: str = "run", *, plan: Plan | None = None, text: str = POPULATION) -> Plan:
    plan = plan or plan_for(text)
    ledger.start_run(run, "people", plan, groups_of(plan, text))
    return plan


def play(ledger: Ledger, run: str, rounds: range, *, each: int = 3) -> None:
    """Charges and publishes rounds, with the first ``each`` clients of every group taking part."""
    owner = ledger.state.run(run)
    for number in rounds:
        taking_part = {
            group.name: np.flatnonzero((owner.assignment == number) & ~owner.population.has_left)[:each]
            for number, group in enumerate(owner.plan.groups)
        }
        charges, refused = ledger.charge_round(run, number, taking_part)
        assert not refused, refused
        publish(list(charges.values()), f"{number:064x}")


def oracle(events: list[tuple[float, float, int]], delta: float) -> float:
    """Epsilon by dp-accounting's own accountant and nothing of ours: (noise multiplier, rate, rounds) each."""
    judge = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-3)
    for noise, rate, rounds in events:
        judge.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), rounds))
    epsilon = float(judge.get_epsilon(delta))
    assert math.isfinite(epsilon)
    return epsilon
