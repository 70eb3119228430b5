"""Which client has which examples.

Place: after `datasets`, before training. Each function gives one array of indices for each client; the generator is an
argument, so the same generator state gives the same partition.

Guarantees (tests of the same name):
  every_example_at_most_once  no example is at two clients, and all but `partition_natural` use every example.
  no_client_is_empty        every client has an example (`partition_dirichlet`: ``min_size``); where that cannot be, an
                            `InputError` says so.
  iid_sizes_differ_by_one   at most.
  natural_keeps_owners_whole  a client of `partition_natural` has all examples of exactly one owner.
  concentration_sets_the_skew  a small concentration gives clients few classes, a large one the mixture of all.
  skew_ties_data_to_budgets   at 1 the strict clients have the smallest labels, at 0 budgets tell nothing of labels.
"""

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, expect

__all__ = ["Partition", "label_mix", "partition_dirichlet", "partition_iid", "partition_natural", "skewed_by_budget"]

Partition = tuple[NDArray[np.int64], ...]


def partition_iid(num_examples: int, num_clients: int, *, generator: np.random.Generator) -> Partition:
    """Shuffles all examples and deals them out evenly."""
    _check_room(num_examples, num_clients, min_size=1)
    shuffled = generator.permutation(num_examples)
    return tuple(np.sort(part).astype(np.int64) for part in np.array_split(shuffled, num_clients))


def partition_dirichlet(
    labels: NDArray[np.int64],
    num_clients: int,
    *,
    concentration: float,
    min_size: int,
    generator: np.random.Generator,
) -> Partition:
    """Deals out each class by shares of the clients drawn from Dirichlet(``concentration``).

    A client below ``min_size`` then gets random examples of the client that has the most, one by one. (Drawing anew
    until all are large enough, as is often done, does not end for thousands of clients.)
    """
    expect(0 < concentration < math.inf, "a finite concentration > 0", concentration=concentration)
    if min_size < 1:
        raise InputError(f"expected min_size >= 1, got min_size={min_size}: a client without data cannot train")
    _check_room(len(labels), num_clients, min_size=min_size)
    owners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        examples = generator.permutation(np.flatnonzero(labels == label))
        counts = generator.multinomial(len(examples), _shares(num_clients, concentration, generator))
        owners[examples] = np.repeat(np.arange(num_clients), counts)
    parts = [list(part) for part in _by_owner(owners, num_clients)]
    _fill(parts, min_size=min_size, generator=generator)
    return tuple(np.sort(np.array(part, dtype=np.int64)) for part in parts)


def partition_natural(owners: NDArray[np.int64], num_clients: int, *, generator: np.random.Generator) -> Partition:
    """One client for each of ``num_clients`` owners, drawn in random order, so that a client's number tells nothing.

    With fewer clients than owners the others' examples are left out: to merge two people into one client would change
    whom a guarantee protects.
    """
    names, numbers = np.unique(owners, return_inverse=True)
    if not 1 <= num_clients <= len(names):
        raise InputError(
            f"expected from 1 to {len(names)} clients, as many as there are owners, got num_clients={num_clients}: a "
            f"client more would have no data"
        )
    parts = _by_owner(numbers.astype(np.int64), len(names))
    return tuple(parts[owner] for owner in generator.permutation(len(names))[:num_clients])


def skewed_by_budget(
    parts: Sequence[NDArray[np.int64]],
    labels: NDArray[np.int64],
    epsilons: NDArray[np.float64],
    *,
    skew: float,
    generator: np.random.Generator,
) -> Partition:
    """The same parts, dealt out anew: parts with small mean labels to the clients with small epsilons.

    Parts are ordered by ``skew`` times the rank of their mean label plus (1 - ``skew``) times a random rank.
    """
    expect(0 <= skew <= 1, "0 <= skew <= 1", skew=skew)
    chance = generator.permutation(len(parts))
    means = np.array([labels[part].mean() for part in parts])
    ranks = np.lexsort((chance, means)).argsort()
    order = np.lexsort((chance, skew * ranks + (1 - skew) * chance))
    clients = np.lexsort((generator.permutation(len(parts)), epsilons))
    dealt: list[NDArray[np.int64]] = list(parts)
    for client, part in zip(clients.tolist(), order.tolist(), strict=True):
        dealt[client] = parts[part]
    return tuple(dealt)


def label_mix(
    parts: Sequence[NDArray[np.int64]], labels: NDArray[np.int64], epsilons: NDArray[np.float64], *, num_classes: int
) -> NDArray[np.float64]:
    """(budgets, classes): each class's share of the examples of the clients with one budget, strictest first."""
    rows = []
    for epsilon in np.unique(epsilons):
        examples = np.concatenate([parts[client] for client in np.flatnonzero(epsilons == epsilon).tolist()])
        rows.append(np.bincount(labels[examples], minlength=num_classes) / len(examples))
    return np.stack(rows)


def _check_room(num_examples: int, num_clients: int, *, min_size: int) -> None:
    expect(num_clients >= 1, "num_clients >= 1", num_clients=num_clients)
    if num_examples < num_clients * min_size:
        raise InputError(
            f"expected at least {min_size} examples for each of {num_clients} clients, got {num_examples} in all: a "
            f"client would be without data; lower the number of clients or the smallest size"
        )


def _shares(num_clients: int, concentration: float, generator: np.random.Generator) -> NDArray[np.float64]:
    shares = generator.dirichlet(np.full(num_clients, concentration))
    total = shares.sum()
    if not (math.isfinite(total) and total > 0):
        # The limit of a vanishing concentration, where the draw underflows: one client has it all.
        shares = np.zeros(num_clients)
        shares[generator.integers(num_clients)] = total = 1.0
    normalised: NDArray[np.float64] = shares / total
    return normalised


def _by_owner(owners: NDArray[np.int64], num_owners: int) -> list[NDArray[np.int64]]:
    """The indices of each owner's examples, in order."""
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owners, minlength=num_owners))[:-1])


def _fill(parts: list[list[np.int64]], *, min_size: int, generator: np.random.Generator) -> None:
    """Moves examples from the largest clients to those below ``min_size``, in place."""
    largest = [(-len(part), client) for client, part in enumerate(parts)]
    heapq.heapify(largest)
    for part in parts:
        while len(part) < min_size:
            # While one is too small another is larger than min_size, so entries of receivers never come up.
            _, giver = heapq.heappop(largest)
            examples = parts[giver]
            part.append(examples.pop(int(generator.integers(len(examples)))))
            heapq.heappush(largest, (-len(examples), giver))
