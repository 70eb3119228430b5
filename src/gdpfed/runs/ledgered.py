"""A simulated run through a ledger: every round is charged before its sums are released.

Place: around the release of `training/rounds.py`. For each round: charge every group that can pay, leave out the
clients of those that cannot, release, publish the hash of what left. A group that has spent its budget stops, the
others go on; when all have stopped, the run ends.

After a kill: a round that was charged and not published is charged again, as another attempt (the first stays spent);
a round that was published is computed again and must come out the same, and is not charged again.

Guarantees (tests of the same name):
  a_run_goes_on_through_its_ledger   killed at any point and resumed: spend is the undisturbed run's plus lost rounds.
  a_stopped_group_is_left_out        nothing of it is released, the others are trained as before.
"""

import dataclasses
import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.admission import check_admission
from gdpfed.ledger.book import Charge, Ledger, publish
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.population import Population
from gdpfed.ledger.state import Run
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.budgets import Budgets
from gdpfed.runs.link import LedgerLink, read_link
from gdpfed.training.rounds import Release, Released, TrainingState, Updates

__all__ = ["LedgerLink", "LedgeredRelease", "check_link", "joined_run", "population_of", "read_link"]

IntArray = NDArray[np.int64]


def population_of(ledger: Ledger, name: str | None) -> str:
    """The population that is meant: the named one, or the only one."""
    if name is not None:
        return ledger.state.population(name).name
    names = list(ledger.state.populations)
    if len(names) != 1:
        raise InputError(f"expected --population, one of {', '.join(names) or 'none'}: the ledger has {len(names)}")
    return names[0]


def _matched(population: Population, budgets: Budgets, order: IntArray) -> IntArray:
    """The place in the population of each simulated client; ``order`` is whose budget it was dealt."""
    if budgets.clients is not None and population.labels is not None:
        return population.indices(budgets.clients)
    if len(budgets) > len(population) or (budgets.clients is None) != (population.labels is None):
        raise InputError(
            f"population {population.name!r} of the ledger has {len(population)} clients "
            f"{'without' if population.labels is None else 'with'} names, the task has {len(budgets)} "
            f"{'without' if budgets.clients is None else 'with'}: make a population for these clients"
        )
    return order


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
    elif known.plan_hash != plan_hash(plan):
        raise PrivacyError(
            f"the ledger has run {link.run!r} with another plan: restore plan.toml, or start another run"
        )
    elif known.population is not population:
        raise PrivacyError(
            f"the ledger has run {link.run!r} in population {known.population.name!r}, not {link.population!r}: start "
            f"another run"
        )
    elif not np.array_equal(known.assignment[places], assignment):
        raise PrivacyError(f"the ledger has run {link.run!r} with clients in other groups: start another run")
    return places


class LedgeredRelease:
    """Charges, then releases, then publishes. ``places`` is each simulated client's place in the population."""

    def __init__(self, inner: Release, ledger: Ledger, run: str, places: IntArray) -> None:
        self._inner = inner
        self._ledger = ledger
        self._run = run
        self._places = places
        self.cohort: tuple[int, ...] = ()

    @property
    def run(self) -> Run:
        """The run as the ledger has it."""
        return self._ledger.state.run(self._run)

    def spent(self) -> tuple[float, ...]:
        """The most that a client of each group has spent, over all runs of the ledger."""
        return tuple(self._ledger.spent_by_group(self.run).values())

    def close(self) -> None:
        """Ends the run: rounds that it did not need are free again."""
        self._ledger.close_run(self._run)

    def __call__(
        self,
        state: TrainingState,
        *,
        plan: Plan,
        assignment: IntArray,
        clients: IntArray,
        updates: Updates,
        seed: int,
    ) -> Released:
        """One round; ExhaustedError if no group can pay for it."""
        charges, taking_part = self._published(state.round_number, plan)
        if not charges:
            charges, taking_part = self._charged(state.round_number, plan, assignment, self._eligible(plan, clients))
        chosen = np.flatnonzero(np.isin(self._places, np.concatenate(list(taking_part.values()))))
        self.cohort = tuple(len(taking_part.get(group.name, ())) for group in plan.groups)
        released = self._inner(state, plan=plan, assignment=assignment, clients=chosen, updates=updates, seed=seed)
        sums = released.sums
        if plan.release == "pooled":
            publish(list(charges.values()), _content_hash(sums[0]))
            return released
        # Of a group that could not pay, nothing is released, not even noise.
        sums = [
            total if group.name in charges else torch.zeros_like(total)
            for group, total in zip(plan.groups, sums, strict=True)
        ]
        hashes = [_content_hash(t) for g, t in zip(plan.groups, sums, strict=True) if g.name in charges]
        publish([charges[group.name] for group in plan.groups if group.name in charges], *hashes)
        return dataclasses.replace(released, sums=sums)

    def _published(self, round_number: int, plan: Plan) -> tuple[dict[str, Charge], dict[str, IntArray]]:
        """The charges of a round that was published before a kill, and who took part."""
        found = {group.name: self._ledger.participants(self._run, round_number, group.name) for group in plan.groups}
        taking_part = {name: places for name, places in found.items() if places is not None}
        return {name: self._ledger.charge(self._run, round_number, name) for name in taking_part}, taking_part

    def _eligible(self, plan: Plan, clients: IntArray) -> IntArray:
        """Who may still be charged with a participation; rounds that were lost count too."""
        places = self._places[clients]
        allowed = ~self.run.population.has_left[places]
        if plan.max_participations is not None:
            allowed &= self.run.participations[places] < plan.max_participations
        return clients[allowed]

    def _charged(
        self, round_number: int, plan: Plan, assignment: IntArray, clients: IntArray
    ) -> tuple[dict[str, Charge], dict[str, IntArray]]:
        asked = {
            group.name: self._places[clients[assignment[clients] == number]] for number, group in enumerate(plan.groups)
        }
        charges, refused = self._ledger.charge_round(self._run, round_number, asked)
        if not charges:
            raise ExhaustedError(
                f"no group of run {self._run!r} can pay for round {round_number}: {next(iter(refused.values()))}",
                rounds_left=0,
            )
        return charges, {name: asked[name] for name in charges}


def _content_hash(total: torch.Tensor) -> str:
    return hashlib.sha256(total.contiguous().numpy().tobytes()).hexdigest()
