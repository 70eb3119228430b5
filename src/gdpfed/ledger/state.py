"""What the rows say: populations, runs and charges, by replaying them.

Place: between the store and the ledger. The live ledger and `verify` apply the same rows to the same class, so that
what is live is what a replay gives. A row that cannot follow the rows before it raises PrivacyError and is named.

Guarantees (tests of the same name):
  replay_equals_live        the state replayed from the rows spends what the live one does, to 1e-9.
  groups_are_fixed_in_a_run a client that was in a group of a run cannot come into another.
  rotations_and_poisson_runs_compose   against the server: the asks of one, and the participations of the other.
  the_cap_is_kept           a row in which a client takes part more often than its plan allows is refused.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.config import from_mapping
from gdpfed.errors import GdpfedError, InputError, PrivacyError, suggestion
from gdpfed.ledger.chain import Row, unpack, unpack_sample
from gdpfed.ledger.charges import Attempt, ChargeState, moved
from gdpfed.ledger.population import IntArray, Population, Stay
from gdpfed.ledger.spend import History, merged, spent
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.accountant import SampledGaussian

__all__ = [
    "FORMAT", "Counts", "LedgerState", "Run", "check_entering", "check_participants", "checked_assignment",
    "refuse_rotation",
]  # fmt: skip

FORMAT = 1
# How often groups were charged, by run and group.
Counts = Mapping[tuple[str, int], int]


@dataclass(kw_only=True, eq=False)
class Run:
    """A run: its plan, who is in which group, and its charges.

    ``charged`` counts a group's rounds. In a rotation, where a round costs those who are asked, it counts the asks of
    its most asked client, and so does all that is held, promised and spent.

    ``assignment`` is each client's group, -1 for nobody; it keeps the group of a client that left. ``limits`` is how
    many charges of each group are known to keep all budgets, None where that must be computed again.
    """

    name: str
    population: Population
    plan: Plan
    plan_hash: str
    is_open: bool = True
    attempts: dict[tuple[int, int], list[Attempt]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_rounds: int = self.plan.num_rounds
        self.assignment: NDArray[np.int16] = np.full(len(self.population), -1, dtype=np.int16)
        self.participations: NDArray[np.int32] = np.zeros(len(self.population), dtype=np.int32)
        self.charged = [0] * len(self.plan.groups)
        # It was let in with all its rounds.
        self.limits: list[int | None] = [self.num_releases] * len(self.plan.groups)

    @property
    def num_releases(self) -> int:
        """How often a client may be charged: in every round, or for every ask."""
        return self.num_rounds if self.plan.asks is None else self.plan.asks

    def rounds_charged(self) -> int:
        """Of the group with the most charged attempts, so many."""
        groups = range(len(self.plan.groups))
        return max(sum(attempt.is_charged for attempt in self.all_attempts(group)) for group in groups)

    def group_number(self, name: str) -> int:
        """A group's index in the plan."""
        names = [group.name for group in self.plan.groups]
        if name not in names:
            raise InputError(f"run {self.name!r} has no group {name!r}{suggestion(name, names)}")
        return names.index(name)

    def attempts_of(self, round_number: int, group: int) -> list[Attempt]:
        """All attempts of a group's round, in order."""
        return self.attempts.get((round_number, group), [])

    def all_attempts(self, group: int | None = None) -> Iterator[Attempt]:
        """Those of one group, or of all."""
        for (_, number), attempts in self.attempts.items():
            if group is None or number == group:
                yield from attempts

    def count(self, state: ChargeState, group: int | None = None) -> int:
        """Attempts in a state, of one group or of all."""
        return sum(attempt.state == state for attempt in self.all_attempts(group))

    def held(self, group: int) -> int:
        """Rounds that the run may still charge without being asked again."""
        limit = self.limits[group]
        return max((self.num_releases if limit is None else limit) - self.charged[group], 0) if self.is_open else 0

    def event(self, group: int, num_rounds: int) -> list[SampledGaussian]:
        """What so many rounds of a group are to the accountant."""
        mechanism = self.plan.mechanism(self.plan.groups[group])
        return [dataclasses.replace(mechanism, num_rounds=num_rounds)] if num_rounds else []


class LedgerState:
    """Everything that a ledger knows after these rows."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.about: dict[str, Any] = {}
        self.populations: dict[str, Population] = {}
        self.runs: dict[str, Run] = {}
        # See `doubled.py`; None where it must be computed first. Who only reads a status does not wait for it.
        self._doubled: dict[str, tuple[str, ...]] | None = None
        self.unsettled: dict[str, tuple[str, ...]] | None = None
        for row in rows:
            self.apply(row)

    def population(self, name: str) -> Population:
        """By name."""
        if name not in self.populations:
            raise InputError(f"the ledger has no population {name!r}{suggestion(name, self.populations)}")
        return self.populations[name]

    def run(self, name: str) -> Run:
        """By name."""
        if name not in self.runs:
            raise InputError(f"the ledger has no run {name!r}{suggestion(name, self.runs)}")
        return self.runs[name]

    def run_and_group(self, run: str, group: str) -> tuple[Run, int]:
        """By name; the group as its index in the plan."""
        owner = self.run(run)
        return owner, owner.group_number(group)

    def runs_of(self, population: Population) -> list[Run]:
        """All runs, open or closed, of a population's clients."""
        return [run for run in self.runs.values() if run.population is population]

    def end_of(self, stay: Stay) -> int:
        """How often its group was charged until a stay ended, or until now."""
        return self.runs[stay.run].charged[stay.group] if stay.end is None else stay.end

    def history(
        self, population: Population, number: int, *, then: Counts | None = None, in_rotations: bool = False
    ) -> History:
        """All charged events of a class; ``then`` says of some groups how often they had been charged by then.

        ``in_rotations``: only those, which hold against the server as they stand.
        """
        events: list[SampledGaussian] = []
        for stay in population.classes[number]:
            if in_rotations and not self.runs[stay.run].plan.is_rotation:
                continue
            end = self.end_of(stay)
            if then is not None:
                end = min(end, then.get((stay.run, stay.group), end))
            events += self.runs[stay.run].event(stay.group, max(end - stay.first, 0))
        return merged(events)

    def promised(self, population: Population, number: int, *, without: tuple[str, int] | None = None) -> History:
        """Its charged events, and the rounds that open runs hold for it, except those of one group of a run."""
        events = [*self.history(population, number)]
        for stay in population.classes[number]:
            if stay.end is None and (stay.run, stay.group) != without:
                run = self.runs[stay.run]
                events += run.event(stay.group, run.held(stay.group))
        return merged(events)

    def most_spent(self, run: Run, group: int, *, then: Counts | None = None) -> float:
        """The most that a client of a group has spent over all runs, at its delta; ``then`` as for `history`."""
        population = run.population
        return max(
            (
                spent(self.history(population, number, then=then), delta=delta)
                for number in population.classes_in(run.name, group)
                for _, delta in population.strictest_of(number)
            ),
            default=0.0,
        )

    def apply(self, row: Row) -> None:
        """One row on."""
        content = row.content
        try:
            handler = getattr(self, f"_apply_{row.kind}", None)
            if handler is None or (not self.about and row.kind != "ledger"):
                raise PrivacyError(f"a row of kind {row.kind!r} has no place here")
            handler(content)
        except (GdpfedError, KeyError, TypeError, ValueError, IndexError) as error:
            raise PrivacyError(f"row {row.number} ({row.kind}) cannot follow the rows before it: {error}") from None

    def _apply_ledger(self, content: dict[str, Any]) -> None:
        if self.about or content["format"] != FORMAT:
            raise PrivacyError(f"expected one first row with format {FORMAT}")
        self.about = content

    # Clients.

    def _apply_population(self, content: dict[str, Any]) -> None:
        if content["population"] in self.populations:
            raise InputError(f"the population {content['population']!r} exists already")
        population = Population(content["population"], content)
        self.populations[population.name] = population
        self._doubled = self.unsettled = None

    def _apply_join(self, content: dict[str, Any]) -> None:
        population = self.population(content["population"])
        before = len(population)
        population.join(content)
        self._doubled = self.unsettled = None
        more = len(population) - before
        for run in self.runs_of(population):
            run.assignment = np.concatenate([run.assignment, np.full(more, -1, dtype=np.int16)])
            run.participations = np.concatenate([run.participations, np.zeros(more, dtype=np.int32)])

    def _apply_leave(self, content: dict[str, Any]) -> None:
        population = self.population(content["population"])
        leaving = np.zeros(len(population), dtype=bool)
        leaving[unpack(content["clients"])] = True
        for number, is_leaving in enumerate(population.split(leaving)):
            if is_leaving:
                stays = population.classes[number]
                population.classes[number] = tuple(dataclasses.replace(stay, end=self.end_of(stay)) for stay in stays)
        population.has_left |= leaving
        self._forget_limits(population)

    def _apply_tighten(self, content: dict[str, Any]) -> None:
        population = self.population(content["population"])
        population.tighten(unpack(content["clients"]), epsilon=content["epsilon"], delta=content["delta"])
        self._forget_limits(population)

    def _forget_limits(self, population: Population) -> None:
        self.unsettled = None
        for run in self.runs_of(population):
            run.limits = [None] * len(run.limits)

    def shared(self, labels: Sequence[str], *, population: str) -> Iterator[tuple[str, str]]:
        """Those of a population's labels that another one holds too, also of clients that left, and its name."""
        for other in self.populations.values():
            if other.name != population and other.labels is not None:
                known = other.index_by_label
                # Much faster, and nearly always the end of it.
                if not known.keys().isdisjoint(labels):
                    yield from ((label, other.name) for label in labels if label in known)

    @property
    def doubled(self) -> dict[str, tuple[str, ...]]:
        """Names that several populations hold (in ledgers of earlier versions), and these populations."""
        if self._doubled is None:
            holders: dict[str, set[str]] = {}
            for population in self.populations.values():
                for label, other in self.shared(population.labels or (), population=population.name):
                    holders.setdefault(label, {population.name}).add(other)
            self._doubled = {
                label: tuple(name for name in self.populations if name in names) for label, names in holders.items()
            }
        return self._doubled

    # Runs.

    def _apply_run(self, content: dict[str, Any]) -> None:
        population = self.population(content["population"])
        if content["run"] in self.runs:
            raise InputError(f"the run {content['run']!r} exists already")
        plan = _plan_of(content["plan"])
        if plan_hash(plan) != content["plan_hash"]:
            raise PrivacyError("the plan does not match its hash")
        assignment = checked_assignment(unpack(content["assignment"]), population, plan)
        run = Run(name=content["run"], population=population, plan=plan, plan_hash=content["plan_hash"])
        self.runs[run.name] = run
        self._enrol(run, assignment)

    def _apply_enrol(self, content: dict[str, Any]) -> None:
        run, group = self.run_and_group(content["run"], content["group"])
        refuse_rotation(run, "joined")
        assignment = np.full(len(run.population), -1, dtype=np.int16)
        assignment[unpack(content["clients"])] = group
        self._enrol(run, assignment)
        run.limits[group] = None

    def _enrol(self, run: Run, assignment: NDArray[np.int16]) -> None:
        """Puts clients into groups; -1 changes nothing."""
        check_entering(run.population, assignment, run=run)
        run.assignment = np.where(assignment >= 0, assignment, run.assignment)
        for number, group in enumerate(run.population.split(assignment)):
            if group >= 0:
                run.population.classes[number] += (Stay(run=run.name, group=group, first=run.charged[group]),)

    def _apply_extend(self, content: dict[str, Any]) -> None:
        run = self.run(content["run"])
        refuse_rotation(run, "extended")
        run.num_rounds = int(content["num_rounds"])
        run.limits = [run.num_rounds] * len(run.limits)

    def _apply_close(self, content: dict[str, Any]) -> None:
        self.run(content["run"]).is_open = False

    # Charges.

    def _apply_reserve(self, content: dict[str, Any]) -> None:
        run, group = self.run_and_group(content["run"], content["group"])
        before = run.attempts.setdefault((content["round"], group), [])
        if not run.is_open or content["attempt"] != len(before):
            raise PrivacyError("expected an open run and the next attempt")
        before.append(
            Attempt(run=run.name, round_number=content["round"], attempt=content["attempt"], group=content["group"])
        )

    def _apply_charge(self, content: dict[str, Any]) -> None:
        run, group = self.run_and_group(content["run"], content["group"])
        if not run.is_open:
            raise PrivacyError(f"run {run.name!r} is closed: it can no longer be charged")
        taking_part = unpack_sample(content["clients"])
        check_participants(run, group, taking_part)
        self._move(content, "charged")
        run.participations[taking_part] += 1
        if run.plan.is_rotation:
            run.charged[group] = max(run.charged[group], int(run.participations[taking_part].max(initial=0)))
        else:
            run.charged[group] += 1
            run.population.precision[taking_part] += run.plan.groups[group].noise_multiplier ** -2.0

    def _move(self, content: dict[str, Any], to: ChargeState) -> None:
        run, group = self.run_and_group(content["run"], content["group"])
        attempts, number = run.attempts[content["round"], group], content["attempt"]
        attempts[number] = moved(attempts[number], to, content_hash=content.get("content_hash"))

    _apply_publish = functools.partialmethod(_move, to="published")
    _apply_abort = functools.partialmethod(_move, to="aborted")


def _plan_of(content: dict[str, Any]) -> Plan:
    """A plan from a row. `verify` recomputes its claims; here that would make every opening slow."""
    groups = tuple(from_mapping(Group, group, source="a group of the plan") for group in content["groups"])
    return from_mapping(Plan, {**content, "groups": groups}, source="the plan")


def refuse_rotation(run: Run, what: str) -> None:
    """Raises PrivacyError for a run in which everybody's turns are fixed."""
    if run.plan.is_rotation:
        raise PrivacyError(
            f"a rotation is fixed before its first round: run {run.name!r} cannot be {what}; start another"
        )


def checked_assignment(assignment: NDArray[Any], population: Population, plan: Plan) -> NDArray[np.int16]:
    """Each client's group, if there is one, or -1, for every client of the population."""
    if len(assignment) != len(population):
        expected = f"a group for each of {len(population)} clients of {population.name!r}"
        raise InputError(f"expected {expected}, got {len(assignment)}")
    if not ((assignment >= -1) & (assignment < len(plan.groups))).all():
        raise InputError(f"expected groups from -1 (nobody) to {len(plan.groups) - 1}, got others")
    return assignment.astype(np.int16)


def check_entering(population: Population, assignment: NDArray[np.int16], *, run: Run | None = None) -> None:
    """Raises PrivacyError if a client would be in a second group of the run, or has left."""
    entering = assignment >= 0
    if run is not None and (moving := entering & (run.assignment >= 0)).any():
        first = int(np.argmax(moving))
        old, new = (run.plan.groups[int(groups[first])].name for groups in (run.assignment, assignment))
        again = "is" if old == new else f"cannot move to {new!r}: it is"
        raise PrivacyError(
            f"client {population.label(first)!r} {again} in {old!r} of run {run.name!r} already, and a change within a "
            f"run could depend on data: clients' losses would no longer compose in parallel; start another run"
        )
    if (gone := entering & population.has_left).any():
        client = population.label(int(np.argmax(gone)))
        raise PrivacyError(f"client {client!r} has left population {population.name!r}: leave it out")


def check_participants(run: Run, group: int, taking_part: IntArray) -> None:
    """Raises PrivacyError unless all clients are in the group, present, and below the cap."""
    population = run.population
    strange = (run.assignment[taking_part] != group) | population.has_left[taking_part]
    if strange.any():
        client, name = population.label(int(taking_part[np.argmax(strange)])), run.plan.groups[group].name
        raise PrivacyError(f"client {client!r} takes part in {name!r} but is not in it, or has left")
    cap = run.plan.participation_cap
    if cap is not None and (over := run.participations[taking_part] >= cap).any():
        client = population.label(int(taking_part[np.argmax(over)]))
        raise PrivacyError(
            f"client {client!r} has taken part {cap} times, all that its plan allows: do not ask it again"
        )
