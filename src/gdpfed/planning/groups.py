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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.privacy.budgets import Budgets

__all__ = [
    "Grouping",
    "choose_groups",
    "group_at_edges",
    "group_by_distinct",
    "group_everyone",
    "group_given",
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Grouping:
    """Clients in groups, strictest first; ``assignment`` is each client's group."""

    rule: str
    names: tuple[str, ...]
    assignment: IntArray
    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    mean_waste: tuple[float, ...]
    max_waste: tuple[float, ...]


def _grouping(
    budgets: Budgets, assignment: IntArray, default_delta: float, *, rule: str, names: Sequence[str] | None = None
) -> Grouping:
    """Describes an assignment whose group numbers run from 0 without gaps."""
    count = int(assignment.max()) + 1
    epsilons, deltas = np.full(count, np.inf), np.full(count, np.inf)
    np.minimum.at(epsilons, assignment, budgets.epsilons)
    np.minimum.at(deltas, assignment, budgets.deltas_or(default_delta))
    waste = budgets.epsilons - epsilons[assignment]
    sizes = np.bincount(assignment, minlength=count)
    most = np.zeros(count)
    np.maximum.at(most, assignment, waste)
    return Grouping(
        rule=rule,
        names=tuple(names) if names is not None else tuple(f"group {number + 1}" for number in range(count)),
        assignment=assignment,
        sizes=tuple(int(size) for size in sizes),
        epsilons=tuple(float(epsilon) for epsilon in epsilons),
        deltas=tuple(float(delta) for delta in deltas),
        mean_waste=tuple(float(value) for value in np.bincount(assignment, weights=waste, minlength=count) / sizes),
        max_waste=tuple(float(value) for value in most),
    )


def group_everyone(budgets: Budgets, default_delta: float) -> Grouping:
    """One group, at the strictest budget of all."""
    everyone = np.zeros(len(budgets), dtype=np.int64)
    return _grouping(budgets, everyone, default_delta, rule="one", names=["everyone"])


def _check_sizes(found: Grouping, min_size: int) -> Grouping:
    """For groups that are given, not made: says which one is too small."""
    for name, size in zip(found.names, found.sizes, strict=True):
        if size < min_size:
            raise InputError(
                f"expected groups of at least min_group_size={min_size} clients, got {size} in {name!r}: give others"
            )
    return found


def group_given(budgets: Budgets, default_delta: float, *, min_size: int = 1) -> Grouping:
    """The groups that the source names, strictest first."""
    if budgets.groups is None:
        raise InputError(
            "expected a column 'group' in the budgets file for given groups, found none: add it, or choose another rule"
        )
    labels, first = np.unique(np.array(budgets.groups), return_inverse=True)
    strictest = np.full(len(labels), np.inf)
    np.minimum.at(strictest, first, budgets.epsilons)
    order = np.argsort(strictest, kind="stable")
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels))
    names = [str(labels[place]) for place in order]
    return _check_sizes(_grouping(budgets, rank[first], default_delta, rule="given", names=names), min_size)


def group_at_edges(budgets: Budgets, default_delta: float, edges: Sequence[float], *, min_size: int = 1) -> Grouping:
    """Groups with the given lower edges: each client joins the largest edge that it allows.

    A group promises its strictest member's epsilon, which may lie above the edge.
    """
    sorted_edges = np.unique(np.array(edges, dtype=np.float64))
    if not (np.isfinite(sorted_edges).all() and (sorted_edges > 0).all()):
        raise InputError(f"expected finite group epsilons > 0, got {', '.join(f'{edge:g}' for edge in edges)}")
    place = np.searchsorted(sorted_edges, budgets.epsilons, side="right") - 1
    if (place < 0).any():
        strict = int(np.argmin(budgets.epsilons))
        raise PrivacyError(
            f"client {budgets.label(strict)!r} allows epsilon={budgets.epsilons[strict]:g}, below the strictest "
            f"group's "
            f"{sorted_edges[0]:g}: add a group at or below it"
        )
    _, assignment = np.unique(place, return_inverse=True)
    return _check_sizes(_grouping(budgets, assignment, default_delta, rule="edges"), min_size)


def _distinct(budgets: Budgets) -> tuple[FloatArray, IntArray, IntArray]:
    values, place, counts = np.unique(budgets.epsilons, return_inverse=True, return_counts=True)
    return values, place.astype(np.int64), counts.astype(np.int64)


def _assign(starts: Sequence[int], place: IntArray) -> IntArray:
    """The group of each client, from the distinct budgets at which groups start and each client's distinct budget."""
    return (np.searchsorted(np.array(starts), place, side="right") - 1).astype(np.int64)


def group_by_distinct(budgets: Budgets, default_delta: float, *, min_size: int = 1) -> Grouping:
    """A group for each distinct epsilon; a group below ``min_size`` joins the next stricter one."""
    _, place, counts = _distinct(budgets)
    _check_min_size(min_size, len(budgets))
    if len(counts) > MAX_GROUPS:
        raise InputError(
            f"a group for each of {len(counts)} distinct budgets is more than {MAX_GROUPS}: choose fewer, such as "
            f"groups=8"
        )
    starts = list(range(len(counts)))
    before = np.concatenate([[0], np.cumsum(counts)])
    end = len(counts)
    for start in reversed(range(1, len(counts))):
        if before[end] - before[start] < min_size:
            starts.remove(start)
        else:
            end = start
    # The strictest group has no stricter neighbour: it takes in the next one.
    while len(starts) > 1 and before[starts[1]] < min_size:
        del starts[1]
    return _grouping(budgets, _assign(starts, place), default_delta, rule="distinct")


def _check_min_size(min_size: int, num_clients: int) -> None:
    if not 1 <= min_size <= num_clients:
        raise InputError(
            f"expected min_group_size between 1 and the {num_clients} clients, got min_group_size={min_size}"
        )


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
    if not 1 <= max_groups <= MAX_GROUPS:
        raise InputError(f"expected at least one group and at most {MAX_GROUPS}, got groups={max_groups}")
    _check_min_size(min_size, len(budgets))
    epsilons, place, counts = _distinct(budgets)
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
    return _grouping(budgets, _assign(starts, place), default_delta, rule="chosen")


def _best_partition(
    before: FloatArray, signal: FloatArray, *, max_groups: int, min_size: int, value: GroupValue
) -> list[int]:
    """Dynamic programming: ``before`` (candidates + 1,) counts the clients before each candidate; returns where groups
    start."""
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
    """Moves each boundary to its best place between its neighbours, over all distinct budgets, until none moves."""
    moved = True
    while moved:
        moved = False
        for index in range(1, len(starts)):
            left = starts[index - 1]
            right = starts[index + 1] if index + 1 < len(starts) else len(signal)
            places = np.arange(left + 1, right)
            below, above = before[places] - before[left], before[right] - before[places]
            total = value(below, np.full(len(places), signal[left])) + value(above, signal[places])
            total[(below < min_size) | (above < min_size)] = -np.inf
            best = int(places[np.argmax(total)])
            if total.max() > total[starts[index] - left - 1] * (1 + 1e-12):
                starts[index], moved = best, True
    return starts
