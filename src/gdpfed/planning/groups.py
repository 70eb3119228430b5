"""Partition the clients by their budgets.

Place: the planner's first step: budgets -> groups. A group promises its strictest member's epsilon and delta to all of
its members; what a laxer member would have allowed beyond that is the waste, and is reported. Every rule but `given`
makes groups that are contiguous in epsilon, so a client's group follows from its budget and the plan alone.

Guarantees (tests of the same name):
  nobody_gets_less_than_asked   a group's epsilon and delta are at most each member's.
  chosen_equals_brute_force     `choose_groups` finds the best contiguous partition of up to 2,048 distinct budgets.
  minimum_size_is_kept          no group is smaller than asked; small ones join the stricter neighbour.
  order_does_not_matter         permuting the clients permutes the assignment.

Beyond 2,048 distinct budgets boundaries are first sought on 2,048 quantiles, then moved one by one over all budgets
until none improves.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError, expect
from gdpfed.planning.noise_curves import noise_curve
from gdpfed.planning.plan import ReleaseKind
from gdpfed.planning.settings import AUTO_GROUPS, PlanSettings
from gdpfed.privacy.accountant import Accountant
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.calibrate import rough_noise_multiplier
from gdpfed.privacy.rounding import allowance

__all__ = [
    "Grouping",
    "Members",
    "choose_groups",
    "group_at_edges",
    "group_by_distinct",
    "group_everyone",
    "group_given",
    "make_groups",
    "pooled_value",
    "separate_value",
]

MAX_CANDIDATES = 2048
MAX_GROUPS = 1000

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# What a group of so many clients is worth, given its signal per client (1 / noise multiplier); larger is better,
# groups add up.
GroupValue = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, kw_only=True)
class Members:
    """A group before its mechanism is chosen: how many clients, and what every one of them allows."""

    name: str
    num_clients: int
    epsilon: float
    delta: float
    mean_waste: float
    max_waste: float

    def budget(self, num_rounds: int, accountant: Accountant) -> dict[str, Any]:
        """What a calibration has to keep: the arguments of `noise_multiplier_for` and the like."""
        return {"epsilon": self.epsilon, "delta": self.delta, "num_rounds": num_rounds, "accountant": accountant}


@dataclass(frozen=True, kw_only=True, eq=False)
class Grouping:
    """Clients in groups, strictest first; ``assignment`` is each client's group."""

    rule: str
    groups: tuple[Members, ...]
    assignment: IntArray

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of clients in each group."""
        return tuple(group.num_clients for group in self.groups)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """What each group promises."""
        return tuple(group.epsilon for group in self.groups)

    @property
    def deltas(self) -> tuple[float, ...]:
        """At which failure probability."""
        return tuple(group.delta for group in self.groups)

    def cut_off(self, level: float) -> "Grouping":
        """The same groups, none of which may spend more than ``level``."""
        groups = tuple(dataclasses.replace(each, epsilon=min(each.epsilon, level)) for each in self.groups)
        return dataclasses.replace(self, groups=groups)


def make_groups(budgets: Budgets, settings: PlanSettings, *, release: ReleaseKind) -> Grouping:
    """The groups by the rule in the settings; "auto" takes each distinct budget, or chooses where they are many."""
    rule, min_size = settings.groups, settings.min_group_size
    delta = budgets.default_delta if settings.delta is None else settings.delta
    if rule == "auto":
        rule = "distinct" if len(np.unique(budgets.epsilons)) <= AUTO_GROUPS else AUTO_GROUPS
    if rule == "given":
        return group_given(budgets, delta, min_size=min_size)
    if rule == "distinct":
        return group_by_distinct(budgets, delta, min_size=min_size)
    if isinstance(rule, tuple):
        return group_at_edges(budgets, delta, rule, min_size=min_size)
    return choose_groups(
        budgets,
        delta,
        max_groups=rule,
        noise_curve=noise_curve(
            lambda epsilon: rough_noise_multiplier(
                epsilon=epsilon,
                delta=float(budgets.deltas_or(delta).min()),
                sampling_rate=settings.participation,
                num_rounds=settings.num_rounds,
                accountant=settings.accountant,
            ),
            low=float(budgets.epsilons.min()),
            high=float(budgets.epsilons.max()),
            accountant=settings.accountant,
        ),
        value=pooled_value if release == "pooled" else separate_value,
        min_size=min_size,
    )


def _grouping(
    budgets: Budgets, assignment: IntArray, default_delta: float, *, rule: str, names: Sequence[str] | None = None
) -> Grouping:
    """Describes an assignment whose group numbers run from 0 without gaps."""
    sizes = np.bincount(assignment)
    epsilons, deltas, largest = np.full(len(sizes), np.inf), np.full(len(sizes), np.inf), np.zeros(len(sizes))
    np.minimum.at(epsilons, assignment, budgets.epsilons)
    np.minimum.at(deltas, assignment, budgets.deltas_or(default_delta))
    waste = budgets.epsilons - epsilons[assignment]
    np.maximum.at(largest, assignment, waste)
    mean = np.bincount(assignment, weights=waste) / sizes
    groups = tuple(
        Members(
            name=names[index] if names else f"group {index + 1}",
            num_clients=int(size),
            epsilon=float(epsilons[index]),
            delta=float(deltas[index]),
            mean_waste=float(mean[index]),
            max_waste=float(largest[index]),
        )
        for index, size in enumerate(sizes)
    )
    return Grouping(rule=rule, groups=groups, assignment=assignment)


def group_everyone(budgets: Budgets, default_delta: float) -> Grouping:
    """One group, at the strictest budget of all."""
    everyone = np.zeros(len(budgets), dtype=np.int64)
    return _grouping(budgets, everyone, default_delta, rule="one", names=["everyone"])


def _check_sizes(grouping: Grouping, min_size: int) -> Grouping:
    """For groups that are stated, not made: says which one is too small."""
    for group in grouping.groups:
        if group.num_clients < min_size:
            raise InputError(
                f"expected groups of at least min_group_size={min_size} clients, got {group.num_clients} in "
                f"{group.name!r}: state other groups"
            )
    return grouping


def group_given(budgets: Budgets, default_delta: float, *, min_size: int = 1) -> Grouping:
    """The groups that the source names, strictest first."""
    if budgets.groups is None:
        raise InputError(
            "expected a column 'group' in the budgets file for given groups, got none: add it, or choose another rule"
        )
    labels, label_index = np.unique(np.array(budgets.groups), return_inverse=True)
    strictest = np.full(len(labels), np.inf)
    np.minimum.at(strictest, label_index, budgets.epsilons)
    order = np.argsort(strictest, kind="stable")
    rank = np.argsort(order)
    names = [str(label) for label in labels[order]]
    return _check_sizes(_grouping(budgets, rank[label_index], default_delta, rule="given", names=names), min_size)


def group_at_edges(budgets: Budgets, default_delta: float, edges: Sequence[float], *, min_size: int = 1) -> Grouping:
    """Groups with the given lower edges: each client joins the largest edge that it allows.

    A group promises its strictest member's epsilon, which may lie above the edge.
    """
    sorted_edges = np.unique(np.array(edges, dtype=np.float64))
    if not (np.isfinite(sorted_edges).all() and (sorted_edges > 0).all()):
        raise InputError(f"expected finite group epsilons > 0, got {', '.join(f'{edge:g}' for edge in edges)}")
    edge_index = np.searchsorted(sorted_edges, budgets.epsilons, side="right") - 1
    if (edge_index < 0).any():
        strict = int(np.argmin(budgets.epsilons))
        raise PrivacyError(
            f"client {budgets.label(strict)!r} allows epsilon={allowance(float(budgets.epsilons[strict]))}, below the "
            f"strictest group's {sorted_edges[0]:g}: add a group at or below it"
        )
    _, assignment = np.unique(edge_index, return_inverse=True)
    return _check_sizes(_grouping(budgets, assignment, default_delta, rule="edges"), min_size)


def _group_from(
    starts: Sequence[int], epsilons: FloatArray, budgets: Budgets, default_delta: float, *, rule: str
) -> Grouping:
    """Contiguous groups that start at these of the distinct ``epsilons``."""
    assignment = np.searchsorted(epsilons[np.array(starts)], budgets.epsilons, side="right") - 1
    return _grouping(budgets, assignment, default_delta, rule=rule)


def group_by_distinct(budgets: Budgets, default_delta: float, *, min_size: int = 1) -> Grouping:
    """A group for each distinct epsilon; a group below ``min_size`` joins the next stricter one."""
    epsilons, counts = np.unique(budgets.epsilons, return_counts=True)
    _check_min_size(min_size, len(budgets))
    if len(epsilons) > MAX_GROUPS:
        raise InputError(
            f"a group for each of {len(epsilons)} distinct budgets is more than {MAX_GROUPS} groups: choose fewer, "
            f"such as groups=8"
        )
    starts = list(range(len(epsilons)))
    before = np.concatenate([[0], np.cumsum(counts)])
    end = len(epsilons)
    for start in reversed(range(1, len(epsilons))):
        if before[end] - before[start] < min_size:
            starts.remove(start)
        else:
            end = start
    # The strictest group has no stricter neighbour: it takes in the next one.
    while len(starts) > 1 and before[starts[1]] < min_size:
        del starts[1]
    return _group_from(starts, epsilons, budgets, default_delta, rule="distinct")


def _check_min_size(min_size: int, num_clients: int) -> None:
    expect(1 <= min_size <= num_clients, f"min_group_size from 1 to the {num_clients} clients", min_group_size=min_size)


def pooled_value(sizes: FloatArray, signal_per_client: FloatArray) -> FloatArray:
    """All groups share one noise draw: signals add."""
    return sizes * signal_per_client


def separate_value(sizes: FloatArray, signal_per_client: FloatArray) -> FloatArray:
    """Each group has its own noise draw: squared signals add (at inverse-variance weights)."""
    return (sizes * signal_per_client) ** 2


def choose_groups(
    budgets: Budgets,
    default_delta: float,
    *,
    max_groups: int,
    noise_curve: Callable[[FloatArray], FloatArray],
    value: GroupValue,
    min_size: int = 1,
) -> Grouping:
    """The contiguous partition into at most ``max_groups`` groups with the largest total ``value``."""
    expect(1 <= max_groups <= MAX_GROUPS, f"at least one group and at most {MAX_GROUPS}", groups=max_groups)
    _check_min_size(min_size, len(budgets))
    epsilons, counts = np.unique(budgets.epsilons, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    signal = 1 / noise_curve(epsilons)
    if len(epsilons) <= MAX_CANDIDATES:
        starts = _best_partition(before, signal, max_groups=max_groups, min_size=min_size, value=value)
    else:
        targets = np.linspace(0, before[-1], MAX_CANDIDATES, endpoint=False)
        candidates = np.unique(np.searchsorted(before, targets, side="right") - 1)
        thinned = np.append(before[candidates], before[-1])
        rough = _best_partition(thinned, signal[candidates], max_groups=max_groups, min_size=min_size, value=value)
        starts = _polish([int(candidates[start]) for start in rough], before, signal, min_size=min_size, value=value)
    return _group_from(starts, epsilons, budgets, default_delta, rule="chosen")


def _best_partition(
    before: FloatArray, signal: FloatArray, *, max_groups: int, min_size: int, value: GroupValue
) -> list[int]:
    """Where groups start, by dynamic programming; ``before`` (candidates + 1,) counts the clients before each."""
    sizes = before[None, 1:] - before[:-1, None]
    worth = np.where(sizes >= min_size, value(np.maximum(sizes, 0.0), signal[:, None]), -np.inf)
    best = worth[0]
    came_from: list[IntArray] = []
    total, groups = float(best[-1]), 1
    for number in range(2, min(max_groups, len(signal)) + 1):
        # A group that starts at candidate i extends the best partition of the candidates before it.
        extended = best[:-1, None] + worth[1:, :]
        choice = np.argmax(extended, axis=0)
        best = extended[choice, np.arange(extended.shape[1])]
        came_from.append(choice.astype(np.int64) + 1)
        if best[-1] > total * (1 + 1e-12):
            total, groups = float(best[-1]), number
        if not np.isfinite(best[-1]):
            break
    starts: list[int] = []
    end = len(signal) - 1
    for choice in reversed(came_from[: groups - 1]):
        start = int(choice[end])
        starts.append(start)
        end = start - 1
    return [0, *reversed(starts)]


def _polish(
    starts: list[int], before: FloatArray, signal: FloatArray, *, min_size: int, value: GroupValue
) -> list[int]:
    """Moves each boundary to where it is best between its neighbours, over all distinct budgets, until none moves."""
    moved = True
    while moved:
        moved = False
        for index in range(1, len(starts)):
            left = starts[index - 1]
            right = starts[index + 1] if index + 1 < len(starts) else len(signal)
            candidates = np.arange(left + 1, right)
            below, above = before[candidates] - before[left], before[right] - before[candidates]
            total = value(below, np.full(len(candidates), signal[left])) + value(above, signal[candidates])
            total[(below < min_size) | (above < min_size)] = -np.inf
            if total.max() > total[starts[index] - left - 1] * (1 + 1e-12):
                starts[index], moved = int(candidates[np.argmax(total)]), True
    return starts
