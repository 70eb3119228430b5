"""Lets a run into a ledger: whose budgets it spends, and whether they allow it.

Place: before the first round of a run with a ledger, simulated or deployed; `training/releases/charged.py` charges.
"""

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.admission import check_admission
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.population import Population
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.budgets import Budgets, parse_compact
from gdpfed.privacy.rounding import delta_up
from gdpfed.runs.link import LedgerLink, read_link
from gdpfed.tasks.task import Task

__all__ = ["LedgerLink", "check_link", "joined_run", "population_of", "read_link", "with_whole_budgets"]

IntArray = NDArray[np.int64]


def population_of(ledger: Ledger, name: str | None) -> Population:
    """The population that is meant: the named one, or the only one."""
    names = list(ledger.state.populations)
    if name is None and len(names) != 1:
        raise InputError(f"expected --population, one of {', '.join(names) or 'none'}: the ledger has {len(names)}")
    return ledger.state.population(names[0] if name is None else name)


def _matched(population: Population, budgets: Budgets, order: IntArray) -> IntArray:
    """The place in the population of each simulated client; ``order`` is whose budget it was dealt."""
    if budgets.clients is not None:
        # Without names a client's name is its place.
        return population.indices(budgets.clients)
    if len(budgets) > len(population) or population.labels is not None:
        there = f"{len(population)} clients {'without' if population.labels is None else 'with'} names"
        here = f"{len(budgets)} without"
        raise InputError(f"population {population.name!r} has {there}, the task has {here}: make one for these clients")
    return order


def with_whole_budgets(task: Task, population: Population) -> Task:
    """The task with what its clients allow over all runs, by which a plan of `gdpfed ledger plan` finds its groups."""
    budgets = task.budgets
    places = _matched(population, budgets, np.arange(len(budgets)))
    epsilons = population.epsilons[places]
    if budgets.clients is not None:
        if (budgets.epsilons < epsilons).any() or (budgets.deltas < population.deltas[places]).any():
            raise PrivacyError(
                "the task has smaller budgets than the ledger for some of its clients: lower those of the ledger "
                "first, by gdpfed ledger tighten"
            )
        whole = dataclasses.replace(budgets, epsilons=epsilons, deltas=population.deltas[places])
        return dataclasses.replace(task, budgets=whole)
    text = ",".join(f"{len(list(same))}@{epsilon!r}" for epsilon, same in itertools.groupby(epsilons.tolist()))
    return dataclasses.replace(task, budgets=parse_compact(text), budgets_source=text)


def _groups(population: Population, places: IntArray, assignment: IntArray) -> NDArray[np.int16]:
    groups = np.full(len(population), -1, dtype=np.int16)
    groups[places] = assignment
    return groups


def check_link(link: LedgerLink, plan: Plan, budgets: Budgets, *, order: IntArray, assignment: IntArray) -> None:
    """Raises the ledger's refusal, before there is a folder."""
    ledger = Ledger.read(link.path)
    population = ledger.state.population(link.population)
    groups = _groups(population, _matched(population, budgets, order), assignment)
    if not plan.is_private:
        raise PrivacyError(f"{plan.method} has no privacy: a ledger lets it in for nobody")
    for number, group in enumerate(plan.groups):
        if (groups == number).any() and group.delta < (counted := float(population.deltas[groups == number].min())):
            promised, at = delta_up(group.delta, 2), delta_up(counted, 2)
            raise PrivacyError(
                f"{group.name!r} is promised its epsilon at delta {promised}, the ledger counts at {at}, where "
                f"epsilons are smaller: plan with the ledger's delta, or make a ledger with the plan's"
            )
    check_admission(ledger.state, population, plan, groups, run=link.run)


def joined_run(
    ledger: Ledger, link: LedgerLink, plan: Plan, budgets: Budgets, *, order: IntArray, assignment: IntArray
) -> IntArray:
    """Lets the run in, or finds it again; returns each simulated client's place in the population."""
    population = ledger.state.population(link.population)
    places = _matched(population, budgets, order)
    known = ledger.state.runs.get(link.run)
    if known is None:
        ledger.start_run(link.run, link.population, plan, _groups(population, places, assignment))
        return places
    began = f"the ledger has run {link.run!r}"
    if known.plan_hash != plan_hash(plan):
        raise PrivacyError(f"{began} with another plan: restore plan.toml, or start another run")
    if known.population is not population:
        raise PrivacyError(f"{began} in population {known.population.name!r}, not {link.population!r}: start another")
    if not np.array_equal(known.assignment[places], assignment):
        raise PrivacyError(f"{began} with clients in other groups: start another run")
    return places
