"""The ledger: populations with budgets, runs with plans, and charges that come before releases.

Place: what training talks to. Every change is checked, then made durable, then applied.

    with Ledger.open(path) as ledger:
        ledger.start_run("monday", "hospitals", plan, assignment)
        charge = ledger.reserve("monday", round_number, "group 1")
        charge.commit(participants)          # durable; only now may anything leave
        ...release...
        charge.publish(content_hash)

Guarantees (tests of the same name):
  spend_survives_kills       kills and resumes: what was spent is the undisturbed run's plus the rounds that were
                             charged and never published.
  twice_the_rounds_is_recomputed   50 rounds at epsilon 0.5 extended to 100 cost 0.683, or are refused.
  joining_and_leaving        who joins is charged from then on, who leaves until then.

Does not: hide who took part. The ledger holds every sample; the release epsilons need them secret, so the file is as
secret as the samples.
"""

import dataclasses
import datetime
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gdpfed
from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.admission import check_admission, check_charge, check_extension
from gdpfed.ledger.chain import pack, pack_sample, unpack_sample
from gdpfed.ledger.charges import Attempt, ExhaustedError, moved, next_attempt
from gdpfed.ledger.doubled import check_new_clients
from gdpfed.ledger.keys import public_key
from gdpfed.ledger.population import IntArray, Population, packed_budgets
from gdpfed.ledger.state import (
    FORMAT,
    LedgerState,
    Run,
    check_entering,
    check_participants,
    checked_assignment,
    refuse_rotation,
)
from gdpfed.ledger.store import FaultPoint, Store, no_fault
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.accountant import accountant_version, check_num_rounds
from gdpfed.privacy.budgets import Budgets

__all__ = ["Charge", "Ledger", "publish"]

Entry = tuple[str, Mapping[str, Any]]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Ledger:
    """A ledger opened to write, or (`read`) a snapshot of one. ``store`` holds its rows, ``state`` what they say."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state = LedgerState(store.rows)
        self._num_applied = len(store.rows)

    @classmethod
    def create(cls, path: str | Path, *, key_file: Path | None = None, fault: FaultPoint = no_fault) -> "Ledger":
        """A new ledger without clients."""
        return cls._ready(Store.create(Path(path), key_file=key_file, fault=fault))

    @classmethod
    def open(cls, path: str | Path, *, key_file: Path | None = None, fault: FaultPoint = no_fault) -> "Ledger":
        """An existing ledger, to write; refused while another process has it."""
        return cls._ready(Store.open(Path(path), key_file=key_file, fault=fault))

    @classmethod
    def _ready(cls, store: Store) -> "Ledger":
        try:
            ledger = cls(store)
            if not store.rows:
                # New, or whoever made the files stopped before the first row.
                about = {"format": FORMAT, "id": secrets.token_hex(8), "gdpfed": gdpfed.__version__}
                ledger._write([("ledger", {**about, "public_key": public_key(store.key)})])
            ledger._abort_reservations()
            # Once, here: so that no charge has to wait for it.
            _ = ledger.state.doubled
        except BaseException:
            store.close()
            raise
        return ledger

    @classmethod
    def read(cls, path: str | Path, *, key_file: Path | None = None) -> "Ledger":
        """A snapshot, also while another process writes."""
        return cls(Store.read(Path(path), key_file=key_file))

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the files."""
        self.store.close()

    def _write(self, entries: Sequence[Entry]) -> None:
        """Makes rows durable, then applies them."""
        if self._num_applied != len(self.store.rows):
            raise PrivacyError("a row was written and not counted (it stopped in the middle): open it again")
        if entries:
            for row in self.store.append([(kind, {**content, "at": _now()}) for kind, content in entries]):
                self.state.apply(row)
        self._num_applied = len(self.store.rows)

    # Clients.

    def add_population(
        self, name: str, budgets: Budgets, *, default_delta: float | None = None, other_people: bool = False
    ) -> Population:
        """Clients with their budgets; ``default_delta`` is for those without their own.

        ``other_people``: nobody of them is in another population. Needed where names cannot tell.
        """
        if name in self.state.populations:
            raise InputError(f"the ledger has a population {name!r} already: choose another, or let clients join it")
        check_new_clients(self.state, name, budgets.clients, other_people=other_people)
        delta = budgets.default_delta if default_delta is None else default_delta
        content = {"population": name, **packed_budgets(budgets, delta)}
        if default_delta is not None or np.isnan(budgets.deltas).any():
            content["default_delta"] = delta
        if other_people:
            content["other_people"] = True
        self._write([("population", content)])
        return self.state.population(name)

    def join(self, population: str, budgets: Budgets, *, default_delta: float | None = None) -> IntArray:
        """More clients; returns their indices. They take part once they are enrolled in a run.

        Who states no delta gets ``default_delta``, or `Population.joining_delta`. Without names nobody can tell whether
        a client is new: who joins is another person by definition.
        """
        people = self.state.population(population)
        people.check_joining(budgets.clients)
        check_new_clients(self.state, population, budgets.clients, other_people=True)
        delta = people.joining_delta(len(budgets)) if default_delta is None else default_delta
        before = len(people)
        self._write([("join", {"population": population, **packed_budgets(budgets, delta)})])
        return np.arange(before, len(people), dtype=np.int64)

    def leave(self, population: str, clients: Sequence[str]) -> None:
        """These clients take no further part in any run; what they spent stands."""
        leaving = self.state.population(population).indices(clients)
        self._write([("leave", {"population": population, "clients": pack(leaving)})])

    def tighten(
        self, population: str, clients: Sequence[str], *, epsilon: float | None = None, delta: float | None = None
    ) -> None:
        """Lowers the budgets of these clients from the next charge on."""
        people = self.state.population(population)
        chosen = people.indices(clients)
        people.check_tighter(chosen, epsilon=epsilon, delta=delta)
        content = {"population": population, "clients": pack(chosen), "epsilon": epsilon, "delta": delta}
        self._write([("tighten", content)])

    # Runs.

    def start_run(self, name: str, population: str, plan: Plan, assignment: NDArray[Any]) -> Run:
        """Lets a run in, if all its rounds fit the budgets; ``assignment`` is each client's group, -1 for nobody."""
        people = self.state.population(population)
        known = self.state.runs.get(name)
        if known is not None and known.plan_hash == plan_hash(plan):
            raise InputError(f"the ledger has a run {name!r} already: resume it, or choose another name")
        if known is not None:
            raise PrivacyError(f"the ledger has a run {name!r} with another plan: extend it, or start another run")
        if not plan.is_private:
            raise PrivacyError(f"{plan.method} has no privacy: it would exceed every budget in its first round")
        groups = checked_assignment(np.asarray(assignment), people, plan)
        check_entering(people, groups)
        check_admission(self.state, people, plan, groups, run=name)
        content = {
            "run": name,
            "population": population,
            "plan": dataclasses.asdict(plan),
            "plan_hash": plan_hash(plan),
            "assignment": pack(groups),
            "accountant": accountant_version(),
        }
        self._write([("run", content)])
        return self.state.run(name)

    def enrol(self, run: str, clients: Sequence[str], group: str) -> None:
        """Lets clients of the population into a group of a running run; never into a second one."""
        running, number = self._open_group(run, group)
        entering = running.population.indices(clients)
        assignment = np.full(len(running.population), -1, dtype=np.int16)
        assignment[entering] = number
        check_entering(running.population, assignment, run=running)
        refuse_rotation(running, "joined")
        rest = dataclasses.replace(running.plan, num_rounds=max(running.held(number), 1))
        check_admission(self.state, running.population, rest, assignment, run=run)
        self._write([("enrol", {"run": run, "clients": pack(entering), "group": group})])

    def _open_group(self, run: str, group: str) -> tuple[Run, int]:
        running, number = self.state.run_and_group(run, group)
        if not running.is_open:
            raise PrivacyError(f"run {run!r} is closed: start another")
        return running, number

    def extend(self, run: str, num_rounds: int) -> None:
        """More rounds of the same mechanism than were planned, if they fit."""
        running = self.state.run(run)
        refuse_rotation(running, "extended")
        check_num_rounds(num_rounds)
        if not running.is_open or num_rounds <= running.num_rounds:
            raise InputError(f"expected an open run and more than its {running.num_rounds} rounds, got {num_rounds}")
        check_extension(self.state, running, num_rounds)
        self._write([("extend", {"run": run, "num_rounds": num_rounds})])

    def close_run(self, run: str) -> None:
        """Ends a run: rounds that it held are free again. Records what each group's clients spent at most."""
        ending = self.state.run(run)
        if ending.is_open:
            self._write([("close", {"run": run, "spent": self.spent_by_group(ending)})])

    def spent_by_group(self, run: Run) -> dict[str, float]:
        """The most that a client of each group has spent over all runs, at its delta."""
        return {group.name: self.state.most_spent(run, number) for number, group in enumerate(run.plan.groups)}

    # Charges: a round is charged by `charge_round`, or group by group by `reserve` and `Charge.commit`.

    def charge_round(
        self, run: str, round_number: int, participants: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, "Charge"], dict[str, ExhaustedError]]:
        """Charges several groups of a round in one durable step; returns the charges, and the groups that cannot pay.

        ``participants`` are the indices of each group's sampled clients. Groups that cannot pay must not take part.
        """
        attempts: dict[str, Attempt] = {}
        refused: dict[str, ExhaustedError] = {}
        for group in participants:
            try:
                attempts[group] = self._reservable(run, round_number, group)
            except ExhaustedError as error:
                refused[group] = error
        entries: list[Entry] = []
        for group, attempt in attempts.items():
            entries += [("reserve", attempt.address), self._charge_entry(attempt, participants[group])]
        self._write(entries)
        return {group: Charge(self, attempt) for group, attempt in attempts.items()}, refused

    def reserve(self, run: str, round_number: int, group: str, *, attempt: int | None = None) -> "Charge":
        """The next attempt of a group's round, if all its clients can pay for it; ``attempt`` is only compared."""
        reserved = self._reservable(run, round_number, group, attempt=attempt)
        self._write([("reserve", reserved.address)])
        return Charge(self, reserved)

    def _reservable(self, run: str, round_number: int, group: str, *, attempt: int | None = None) -> Attempt:
        running, number = self._open_group(run, group)
        if not 0 <= round_number < running.num_rounds:
            last = running.num_rounds - 1
            raise PrivacyError(f"expected a round from 0 to {last} of run {run!r}, got {round_number}: extend it")
        following = next_attempt(running.attempts_of(round_number, number))
        if attempt is not None and attempt != following:
            raise PrivacyError(f"expected attempt {following} of round {round_number}, got {attempt}")
        check_charge(self.state, running, number, pending=running.count("reserved", number))
        return Attempt(run=run, round_number=round_number, attempt=following, group=group)

    def _charge_entry(self, attempt: Attempt, participants: NDArray[Any]) -> Entry:
        run, group = self.state.run_and_group(attempt.run, attempt.group)
        taking_part = np.sort(np.asarray(participants, dtype=np.int64))
        check_participants(run, group, taking_part)
        return "charge", {**attempt.address, "clients": pack_sample(taking_part)}

    def _abort_reservations(self) -> None:
        """Whoever made them is gone: there is one writer."""
        attempts = (attempt for run in self.state.runs.values() for attempt in run.all_attempts())
        reason = {"reason": "its process ended"}
        self._write([("abort", {**one.address, **reason}) for one in attempts if one.state == "reserved"])

    def charge(self, run: str, round_number: int, group: str) -> "Charge":
        """The last attempt of a group's round."""
        known, number = self.state.run_and_group(run, group)
        return Charge(self, known.attempts_of(round_number, number)[-1])

    def participants(self, run: str, round_number: int, group: str) -> IntArray | None:
        """Who took part in a group's round that was published; None if it was not."""
        known, number = self.state.run_and_group(run, group)
        attempts = known.attempts_of(round_number, number)
        if not attempts or attempts[-1].state != "published":
            return None
        address = attempts[-1].address.items()
        charges = (row.content for row in reversed(self.store.rows) if row.kind == "charge")
        return next(unpack_sample(content["clients"]) for content in charges if address <= content.items())


class Charge:
    """A group's attempt at a round, as its owner holds it: `commit` before the release, `publish` after."""

    def __init__(self, ledger: Ledger, attempt: Attempt) -> None:
        self._ledger = ledger
        self._attempt = attempt

    @property
    def attempt(self) -> Attempt:
        """How far it came."""
        run, group = self._ledger.state.run_and_group(self._attempt.run, self._attempt.group)
        return run.attempts_of(self._attempt.round_number, group)[self._attempt.attempt]

    def commit(self, participants: NDArray[Any]) -> None:
        """Charges every client of the group, durably; ``participants`` are the indices of those that were sampled."""
        moved(self.attempt, "charged")
        run, group = self._ledger.state.run_and_group(self._attempt.run, self._attempt.group)
        if not run.is_open:
            # What it held is free again, and another run may have it.
            raise PrivacyError(f"run {run.name!r} was closed after {self._attempt} was reserved: it cannot be charged")
        entry = self._ledger._charge_entry(self._attempt, participants)
        # Budgets may have been tightened since the reservation.
        check_charge(self._ledger.state, run, group)
        self._ledger._write([entry])

    def publish(self, content_hash: str) -> None:
        """Says what was released. Again with the same hash changes nothing; with another raises PrivacyError."""
        publish([self], content_hash)

    def abort(self, reason: str) -> None:
        """Gives a reservation back; a charge cannot be."""
        moved(self.attempt, "aborted")
        self._ledger._write([("abort", {**self._attempt.address, "reason": reason})])


def publish(charges: Sequence[Charge], *content_hashes: str) -> None:
    """Publishes several charges of one ledger in one durable step: one content for all, or one for each."""
    hashes = content_hashes * len(charges) if len(content_hashes) == 1 else content_hashes
    entries: list[Entry] = []
    for charge, content_hash in zip(charges, hashes, strict=True):
        before = charge.attempt
        if moved(before, "published", content_hash=content_hash) != before:
            entries.append(("publish", {**before.address, "content_hash": content_hash}))
    if entries:
        charges[0]._ledger._write(entries)
