"""The clients of a ledger and their budgets, as arrays; clients with one past are one class.

Place: in the ledger's state. A class is all clients that were in the same groups of the same runs over the same rounds.
Its members spend the same, so a class is judged once, however many they are, and only against the strictest of its
members' budgets: a million clients cost what their few classes cost.

Guarantees (tests of the same name):
  classes_are_exact            two clients share a class exactly if they share their past.
  a_budget_only_tightens       raising an epsilon or a delta is refused.
  who_joins_gets_no_laxer_delta   than clients ** -1.1 and the population's own default, unless its own is stated.
  labels_find_clients          every client is found by its label, an unknown one is named.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError, suggestion
from gdpfed.ledger.chain import pack, unpack
from gdpfed.ledger.spend import Budget, strictest
from gdpfed.privacy.accountant import check_delta
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.calibrate import check_epsilon
from gdpfed.privacy.rounding import allowance

__all__ = ["Population", "Stay", "packed_budgets"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A class in a group of a run: from its ``first`` charge on, until before its ``end`` one (None: still there)."""

    run: str
    group: int
    first: int
    end: int | None = None


def packed_budgets(budgets: Budgets, default_delta: float) -> dict[str, Any]:
    """Budgets as a row's content."""
    content: dict[str, Any] = {
        "epsilons": pack(budgets.epsilons),
        "deltas": pack(budgets.deltas_or(default_delta)),
    }
    if budgets.clients is not None:
        if any("\n" in label for label in budgets.clients):
            raise InputError("expected client labels without line breaks in a ledger")
        content["labels"] = pack(np.frombuffer("\n".join(budgets.clients).encode(), dtype=np.uint8))
    return content


class Population:
    """Clients by place, 0, 1, ... in the order in which they joined; nobody is ever taken out of the arrays."""

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
        self._strictest: dict[int, tuple[Budget, ...]] = {}
        self.join(content)

    def __len__(self) -> int:
        return len(self.epsilons)

    def label(self, place: int) -> str:
        """A client's name."""
        return str(place) if self.labels is None else self.labels[place]

    @functools.cached_property
    def places_by_label(self) -> dict[str, int]:
        """Where each named client stands."""
        return {label: place for place, label in enumerate(self.labels or ())}

    def places(self, labels: Sequence[str]) -> IntArray:
        """The places of clients by label; without labels a client's name is its place."""
        if self.labels is None:
            found = [int(label) if label.isdecimal() else -1 for label in labels]
            missing = next(
                (label for label, place in zip(labels, found, strict=True) if not 0 <= place < len(self)), None
            )
        else:
            found = [self.places_by_label.get(label, -1) for label in labels]
            missing = next((label for label, place in zip(labels, found, strict=True) if place < 0), None)
        if missing is not None:
            known = [] if self.labels is None else self.labels[:1000]
            raise InputError(f"population {self.name!r} has no client {missing!r}{suggestion(missing, known)}")
        return np.array(found, dtype=np.int64)

    def joining_delta(self, num_joining: int) -> float:
        """For clients that join and state no delta: as for a new population, clients ** -1.1, those who join among
        them; less if the population's own default is less. Never what the laxest of the others allows."""
        own = float(self.deltas.max()) if self.default_delta is None else self.default_delta
        return min(math.pow(len(self) + num_joining, -1.1), own)

    def join(self, content: dict[str, Any]) -> None:
        """New clients, with budgets and no past."""
        epsilons, deltas = unpack(content["epsilons"]), unpack(content["deltas"])
        if ("labels" in content) != (self.labels is not None):
            raise InputError(
                f"expected clients of {self.name!r} {'with' if self.labels is not None else 'without'} labels"
            )
        if self.labels is not None:
            added = unpack(content["labels"]).tobytes().decode().split("\n")
            taken = next((label for label in added if label in self.places_by_label), None) if len(self) else None
            if taken is not None:
                raise InputError(f"population {self.name!r} has a client {taken!r} already")
            if "places_by_label" in self.__dict__:
                self.places_by_label.update((label, place) for place, label in enumerate(added, start=len(self)))
            self.labels = [*self.labels, *added]
        count = len(epsilons)
        self.epsilons = np.concatenate([self.epsilons, epsilons])
        self.deltas = np.concatenate([self.deltas, deltas])
        self.has_left = np.concatenate([self.has_left, np.zeros(count, dtype=bool)])
        self.precision = np.concatenate([self.precision, np.zeros(count)])
        self.class_of = np.concatenate([self.class_of, np.full(count, len(self.classes), dtype=np.int32)])
        self.classes.append(())
        self._strictest.clear()

    def check_tighter(self, places: IntArray, *, epsilon: float | None, delta: float | None) -> None:
        """Raises PrivacyError if a budget would be raised."""
        if epsilon is not None:
            check_epsilon(epsilon)
        if delta is not None:
            check_delta(delta)
        for name, value, values in (("epsilon", epsilon, self.epsilons), ("delta", delta, self.deltas)):
            over = values[places] < (-np.inf if value is None else value)
            if over.any():
                first = int(places[np.argmax(over)])
                raise PrivacyError(
                    f"client {self.label(first)!r} allows {name}={allowance(float(values[first]))}, less than "
                    f"{value!r}: a budget is only tightened, since rounds were promised within it"
                )

    def tighten(self, places: IntArray, *, epsilon: float | None, delta: float | None) -> None:
        """Lowers budgets; what was spent before stands."""
        self.check_tighter(places, epsilon=epsilon, delta=delta)
        if epsilon is not None:
            self.epsilons[places] = epsilon
        if delta is not None:
            self.deltas[places] = delta
        self._strictest.clear()

    def split(self, keys: NDArray[Any]) -> list[tuple[int, int]]:
        """Splits every class by ``keys`` (clients,); returns each new class's key and the class that it came from.

        Called before classes change differently for different members.
        """
        pairs = self.class_of.astype(np.int64) * (int(keys.max(initial=0)) + 2) + keys.astype(np.int64) + 1
        found, inverse = np.unique(pairs, return_inverse=True)
        width = int(keys.max(initial=0)) + 2
        came_from = [(int(pair % width) - 1, int(pair // width)) for pair in found]
        self.classes = [self.classes[old] for _, old in came_from]
        self.class_of = inverse.astype(np.int32)
        self._strictest.clear()
        return came_from

    def members(self, number: int) -> IntArray:
        """The places of a class's clients, those that left too."""
        return np.flatnonzero(self.class_of == number)

    def strictest_of(self, number: int) -> tuple[Budget, ...]:
        """The budgets of a class that imply those of all its members."""
        if number not in self._strictest:
            if not self._strictest:
                self._find_strictest()
            self._strictest.setdefault(number, ())
        return self._strictest[number]

    def _find_strictest(self) -> None:
        if len(self.classes) == 1:
            self._strictest[0] = strictest(self.epsilons, self.deltas)
            return
        order = np.argsort(self.class_of, kind="stable")
        edges = np.searchsorted(self.class_of[order], np.arange(len(self.classes) + 1))
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            chosen = order[first:last]
            self._strictest[number] = strictest(self.epsilons[chosen], self.deltas[chosen])

    def classes_in(self, run: str, group: int) -> list[int]:
        """The classes that are in a group of a run now."""
        return [
            number
            for number, stays in enumerate(self.classes)
            if any(stay.run == run and stay.group == group and stay.end is None for stay in stays)
        ]

    def begin_stay(self, numbers: Iterable[int], stay: Stay) -> None:
        """Puts classes into a group of a run."""
        for number in numbers:
            self.classes[number] = (*self.classes[number], stay)

    def end_stays(self, number: int, charged: dict[tuple[str, int], int]) -> None:
        """Takes a class out of all groups that it is in; ``charged`` is how often each group was charged so far."""
        self.classes[number] = tuple(
            stay
            if stay.end is not None
            else Stay(run=stay.run, group=stay.group, first=stay.first, end=charged[stay.run, stay.group])
            for stay in self.classes[number]
        )
