"""Who is asked in which round: everybody `asks` times, in a public order.

Place: beside the plan, of a plan with `sampling = "rotation"`. The clients of a group stand on a circle, in an order
that is drawn once, before the run, and is public. A round asks those in an arc, and the next round goes on where it
ended: T rounds of arcs that are n K / T long pass over every client exactly K times. Arcs end at whole clients, so that
two rounds' arcs differ by one at most. Nothing here depends on data, nor on who answers.

Guarantees (tests of the same name):
  everybody_is_asked_equally_often   exactly `asks` times, at most once in a round, for all sizes and numbers of rounds.
  rosters_are_nearly_constant        they differ by one client at most.
  asks_are_spread                    from one ask of a client to the next it is at least floor(T / K) rounds.
  the_order_is_public                the same for everybody who knows its seed, another for every seed.
  asks_so_far_are_counted            `most_asks` is what the most asked client was asked, after every round.
"""

import hashlib
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gdpfed.planning.plan import Group, Plan

__all__ = ["asked_positions", "is_asked", "largest_roster", "most_asks", "public_order", "smallest_roster"]

IntArray = NDArray[np.int64]


def public_order(clients: Iterable[int], *, seed: int) -> IntArray:
    """A group's clients, by their numbers, as they stand on their circle. Anybody who knows ``seed`` can compute it.

    By hashes, and not by a library's shuffle: nodes with other versions must come to the same order.
    """

    def place(client: int) -> bytes:
        return hashlib.sha256(f"gdpfed rotation v1 {seed} {client}".encode()).digest()

    return np.array(sorted((int(client) for client in clients), key=place), dtype=np.int64)


def _passed(num_clients: int, plan: Plan, rounds: int) -> int:
    """How many positions the arcs of so many rounds have passed over."""
    return rounds * num_clients * plan.num_releases // plan.num_rounds


def asked_positions(plan: Plan, num_clients: int, *, round_number: int) -> IntArray:
    """The positions on a circle of so many clients that a round (from 0) asks."""
    first, last = (_passed(num_clients, plan, rounds) for rounds in (round_number, round_number + 1))
    return np.arange(first, last, dtype=np.int64) % num_clients


def is_asked(plan: Plan, num_clients: int, *, position: int, round_number: int) -> bool:
    """Whether a round asks the client at this position: what a node checks for itself."""
    first, last = (_passed(num_clients, plan, rounds) for rounds in (round_number, round_number + 1))
    return (position - first) % num_clients < last - first


def most_asks(plan: Plan, group: Group, *, rounds: int) -> int:
    """How often the most asked client of a group was asked in so many rounds."""
    return -(-_passed(group.num_clients, plan, rounds) // group.num_clients)


def smallest_roster(plan: Plan, groups: Iterable[Group]) -> int:
    """A sum of these groups with fewer of those whom it asked is given up; at least 1."""
    asked = sum(group.num_clients * plan.num_releases // plan.num_rounds for group in groups)
    return max(1, math.floor((plan.min_roster or 0.0) * asked))


def largest_roster(plan: Plan, groups: Iterable[Group]) -> int:
    """More of these groups' clients are never asked in a round."""
    return sum(-(-group.num_clients * plan.num_releases // plan.num_rounds) for group in groups)
