"""A release through a ledger: every round is charged before its sums are released.

Place: around another `Release` of `training/rounds.py`. For each round: charge every group that can pay, leave out the
clients of those that cannot, release, publish the hash of what left. A group that has spent its budget stops, the
others go on; when all have stopped, the run ends.

After a kill: a round that was charged and not published is charged again, as another attempt (the first stays spent);
a round that was published is computed again and must come out the same, and is not charged again.

Guarantees (tests of the same name):
  a_run_goes_on_through_its_ledger   killed at any point and resumed: spend is the undisturbed run's plus lost rounds.
  an_ask_is_charged                  in a rotation, to those who are asked; the asks of a lost round are spent too.
  a_stopped_group_is_left_out        nothing of it is released, the others are trained as before.
"""

import dataclasses
import hashlib

import numpy as np
import torch

from gdpfed.ledger.book import Charge, Ledger, publish
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.state import Run
from gdpfed.planning.plan import Plan
from gdpfed.training.rounds import IntArray, Release, Released, TrainingState, cohort_sizes

__all__ = ["ChargedRelease", "content_hash"]


class ChargedRelease:
    """Charges, then releases, then publishes. ``places`` is each simulated client's place in the population."""

    def __init__(
        self, inner: Release, plan: Plan, assignment: IntArray, *, ledger: Ledger, run: str, places: IntArray
    ) -> None:
        self._inner, self._plan, self._assignment = inner, plan, assignment
        self._ledger, self._run, self._places = ledger, run, places

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

    def __call__(self, state: TrainingState, clients: IntArray) -> Released:
        """One round; ExhaustedError if the run was closed, or no group can pay for it."""
        if not self.run.is_open:
            raise ExhaustedError(f"run {self._run!r} was closed after {state.round_number} rounds", rounds_left=0)
        charges, taking_part = self._published(state.round_number)
        if not charges:
            charges, taking_part = self._charged(state.round_number, self._eligible(clients))
        chosen = np.flatnonzero(np.isin(self._places, np.concatenate(list(taking_part.values()))))
        released = self._inner(state, chosen)
        sums = released.sums
        if self._plan.release == "pooled":
            publish(list(charges.values()), content_hash(sums[0]))
        else:
            # Of a group that could not pay, nothing is released, not even noise.
            totals = {group.name: total for group, total in zip(self._plan.groups, sums, strict=True)}
            sums = [total if name in charges else torch.zeros_like(total) for name, total in totals.items()]
            paid = [name for name in totals if name in charges]
            publish([charges[name] for name in paid], *(content_hash(totals[name]) for name in paid))
        cohort = cohort_sizes(self._plan, self._assignment, chosen)
        return dataclasses.replace(released, sums=sums, clients=chosen, cohort=cohort)

    def _published(self, round_number: int) -> tuple[dict[str, Charge], dict[str, IntArray]]:
        """The charges of a round that was published before a kill, and who took part."""
        names = [group.name for group in self._plan.groups]
        known = {name: self._ledger.participants(self._run, round_number, name) for name in names}
        taking_part = {name: places for name, places in known.items() if places is not None}
        return {name: self._ledger.charge(self._run, round_number, name) for name in taking_part}, taking_part

    def _eligible(self, clients: IntArray) -> IntArray:
        """Who may still be charged with a participation; rounds that were lost count too."""
        places = self._places[clients]
        allowed = ~self.run.population.has_left[places]
        if self._plan.participation_cap is not None:
            allowed &= self.run.participations[places] < self._plan.participation_cap
        return clients[allowed]

    def _charged(self, round_number: int, clients: IntArray) -> tuple[dict[str, Charge], dict[str, IntArray]]:
        asked = {
            group.name: self._places[clients[self._assignment[clients] == number]]
            for number, group in enumerate(self._plan.groups)
        }
        charges, refused = self._ledger.charge_round(self._run, round_number, asked)
        if not charges:
            raise ExhaustedError(
                f"no group of run {self._run!r} can pay for round {round_number}: {next(iter(refused.values()))}",
                rounds_left=0,
            )
        return charges, {name: asked[name] for name in charges}


def content_hash(total: torch.Tensor) -> str:
    """What the ledger says of a released sum."""
    return hashlib.sha256(total.contiguous().numpy().tobytes()).hexdigest()
