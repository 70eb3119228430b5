"""The clients of a ledger and their budgets, as arrays; clients with one past are one class.

Place: in the ledger's state. A class is all clients that were in the same groups of the same runs over the same rounds.
Its members spend the same, so a class is judged once, however many they are, and only against the strictest of its
members' budgets: a million clients cost what their few classes cost.

Guarantees (tests of the same name):
  classes_are_exact            two clients share a class exactly if they share their past.
  a_budget_only_tightens       raising an epsilon or a delta is refused.
  who_joins_gets_no_laxer_delta   than a new population gets and the population's own default, unless its own is stated.
  labels_find_clients          every client is found by its label, an unknown one is named.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError, suggestion
from gdpfed.ledger.chain import pack, unpack
from gdpfed.ledger.spend import Budget, strictest
from gdpfed.privacy.accountant import check_delta
from gdpfed.privacy.budgets import Budgets, default_delta_of
from gdpfed.privacy.calibrate import check_epsilon
from gdpfed.privacy.rounding import allowance

__all__ = ["IntArray", "Population", "Stay", "grouped", "packed_budgets"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A class in a group of a run: from its ``first`` charge on, until before its ``end`` one (None: still there)."""

    run: str
    group: int
    first: int
    end: int | None = None


def grouped(keys: NDArray[Any]) -> Iterator[tuple[int, IntArray]]:
    """Each distinct key, and where it stands in ``keys``."""
    order = np.argsort(keys, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        if len(part):
            yield int(keys[part[0]]), part


def packed_budgets(budgets: Budgets, default_delta: float) -> dict[str, Any]:
    """Budgets as a row's content."""
    check_delta(default_delta)
    content: dict[str, Any] = {"epsilons": pack(budgets.epsilons), "deltas": pack(budgets.deltas_or(default_delta))}
    if budgets.clients is not None:
        if any("\n" in label for label in budgets.clients):
            raise InputError("expected client labels without line breaks in a ledger")
        content["labels"] = pack(np.frombuffer("\n".join(budgets.clients).encode(), dtype=np.uint8))
    return content


class Population:
    """Clients by index, 0, 1, ... in the order in which they joined; nobody is ever taken out of the arrays."""

    def __init__(self, name: str, content: dict[str, Any]) -> None:
        self.name = name
        self.epsilons: NDArray[np.float64] = np.empty(0)
        self.deltas: NDArray[np.float64] = np.empty(0)
        self.labels: list[str] | None = [] if "labels" in content else None
        # What was said when it was added: the delta of who states none, and that nobody of it is in another population.
        self.default_delta: float | None = content.get("default_delta")
        self.are_other_people = bool(content.get("other_people", False))
        self.has_left: NDArray[np.bool_] = np.empty(0, dtype=bool)
        self.class_of: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        # What the server has seen of each client: the sum of 1 / noise_multiplier^2 over its participations.
        self.precision: NDArray[np.float64] = np.empty(0)
        self.classes: list[tuple[Stay, ...]] = []
        self._strictest: dict[int, tuple[Budget, ...]] | None = None
        self.join(content)

    def __len__(self) -> int:
        return len(self.epsilons)

    def label(self, index: int) -> str:
        """A client's name."""
        return str(index) if self.labels is None else self.labels[index]

    @functools.cached_property
    def index_by_label(self) -> dict[str, int]:
        """Where each named client stands."""
        return {label: index for index, label in enumerate(self.labels or ())}

    def index(self, label: str) -> int:
        """Where a client stands; without labels a client's name is its index."""
        if self.labels is not None:
            index = self.index_by_label.get(label, -1)
        else:
            index = int(label) if label.isdecimal() and str(int(label)) == label else -1
        if not 0 <= index < len(self):
            known = (self.labels or [])[:1000]
            raise InputError(f"population {self.name!r} has no client {label!r}{suggestion(label, known)}")
        return index

    def indices(self, labels: Iterable[str]) -> IntArray:
        """Where clients stand, by label."""
        return np.array([self.index(label) for label in labels], dtype=np.int64)

    def budgets_of(self, clients: IntArray) -> Budgets:
        """What these clients allow over all runs, by name; who has none has its place for one."""
        names = tuple(map(self.label, clients.tolist()))
        return Budgets(epsilons=self.epsilons[clients], deltas=self.deltas[clients], clients=names)

    def joining_delta(self, num_joining: int) -> float:
        """For clients that join and state no delta: as for a new population (`default_delta_of`), those who join
        among them; less if the population's own default is less. Never what the laxest of the others allows."""
        own = float(self.deltas.max()) if self.default_delta is None else self.default_delta
        return min(default_delta_of(len(self) + num_joining, has_names=self.labels is not None), own)

    def check_joining(self, labels: Sequence[str] | None) -> None:
        """Raises InputError unless the clients have names where the others do, and none is there already."""
        if (labels is None) != (self.labels is None):
            named = "with" if self.labels is not None else "without"
            raise InputError(f"expected clients {named} names, as the others of population {self.name!r} are")
        taken = next((label for label in labels or () if label in self.index_by_label), None) if len(self) else None
        if taken is not None:
            raise InputError(f"population {self.name!r} has a client {taken!r} already: tighten its budget instead")

    def join(self, content: dict[str, Any]) -> None:
        """New clients, with budgets and no past."""
        epsilons, deltas = unpack(content["epsilons"]), unpack(content["deltas"])
        labels = unpack(content["labels"]).tobytes().decode().split("\n") if "labels" in content else None
        self.check_joining(labels)
        if self.labels is not None and labels is not None:
            if "index_by_label" in self.__dict__:
                self.index_by_label.update((label, index) for index, label in enumerate(labels, start=len(self)))
            self.labels = [*self.labels, *labels]
        count = len(epsilons)
        self.epsilons = np.concatenate([self.epsilons, epsilons])
        self.deltas = np.concatenate([self.deltas, deltas])
        self.has_left = np.concatenate([self.has_left, np.zeros(count, dtype=bool)])
        self.precision = np.concatenate([self.precision, np.zeros(count)])
        self.class_of = np.concatenate([self.class_of, np.full(count, len(self.classes), dtype=np.int32)])
        self.classes.append(())
        self._strictest = None

    def check_tighter(self, clients: IntArray, *, epsilon: float | None, delta: float | None) -> None:
        """Raises PrivacyError if a budget of these clients would be raised."""
        for name, value, values, check in (
            ("epsilon", epsilon, self.epsilons, check_epsilon),
            ("delta", delta, self.deltas, check_delta),
        ):
            if value is not None and (over := values[clients] < check(value)).any():
                first = int(clients[np.argmax(over)])
                allows = f"client {self.label(first)!r} allows {name}={allowance(float(values[first]))}"
                raise PrivacyError(f"{allows}, less than {value!r}: a budget is only tightened")

    def tighten(self, clients: IntArray, *, epsilon: float | None, delta: float | None) -> None:
        """Lowers budgets; what was spent before stands."""
        self.check_tighter(clients, epsilon=epsilon, delta=delta)
        if epsilon is not None:
            self.epsilons[clients] = epsilon
        if delta is not None:
            self.deltas[clients] = delta
        self._strictest = None

    def split(self, keys: NDArray[Any]) -> list[int]:
        """Splits every class by ``keys`` (clients,), from -1 on; returns the key of each new class.

        Called before classes change differently for different members.
        """
        width = int(keys.max(initial=0)) + 2
        pairs, inverse = np.unique(self.class_of.astype(np.int64) * width + keys + 1, return_inverse=True)
        self.classes = [self.classes[pair // width] for pair in pairs.tolist()]
        self.class_of = inverse.astype(np.int32)
        self._strictest = None
        return [pair % width - 1 for pair in pairs.tolist()]

    def strictest_of(self, number: int) -> tuple[Budget, ...]:
        """The budgets of a class that imply those of all its members."""
        if self._strictest is None:
            self._strictest = {
                number: strictest(self.epsilons[clients], self.deltas[clients])
                for number, clients in grouped(self.class_of)
            }
        return self._strictest.get(number, ())

    def classes_in(self, run: str, group: int) -> list[int]:
        """The classes that are in a group of a run now."""
        return [
            number
            for number, stays in enumerate(self.classes)
            if any(stay.run == run and stay.group == group and stay.end is None for stay in stays)
        ]
