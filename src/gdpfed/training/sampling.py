"""Who takes part in a round: whom the server asks, and which of them train.

Place: the first step of a round. Two kinds, as the plan says:

    poisson     the server tosses a coin for every client, with its group's probability, and asks those who take part.
                A client that reached `max_participations` is left out.
    rotation    the server asks those whose turn it is (`planning/rotation.py`). Each of them tosses a secret coin, and
                trains, or sends zero: `tossed` puts that before the training. Nothing after it can tell.

In a simulation coins and order follow from the seed; in a deployment the coins come from the operating system: the
server's (`system_coins`), or in a rotation each node's own.

Guarantees (tests of the same name):
  cohort_is_poisson           the cohort's variance is n q (1 - q), not 0 as for a fixed size.
  coins_are_independent       between clients and between rounds.
  cap_is_kept                 no client takes part more often than the plan allows.
  system_coins_are_fair       and never the same twice.
  everybody_asked_is_poisson  a rotation that asks everybody in every round trains whom Poisson sampling would.
  coins_are_not_in_the_roster who is asked, and what a record says, does not depend on the coins.
"""

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gdpfed import streams
from gdpfed.planning.plan import Plan
from gdpfed.planning.rotation import asked_positions, public_order
from gdpfed.training.rounds import IntArray, Sample, TrainingState, Updates

__all__ = [
    "asked_clients", "chosen_clients", "poisson", "public_orders", "sample_clients", "simulated", "system_coins",
    "tossed",
]  # fmt: skip


def simulated(plan: Plan, assignment: IntArray, *, seed: int) -> Sample:
    """Whom a simulation's server asks, as the plan says."""
    if not plan.is_rotation:
        return poisson(plan, assignment, seed=seed)
    orders = public_orders(plan, assignment, seed=seed)
    return lambda state: asked_clients(plan, orders, round_number=state.round_number)


def public_orders(plan: Plan, assignment: IntArray, *, seed: int) -> list[IntArray]:
    """Each group's clients as they stand on their circle."""
    return [public_order(np.flatnonzero(assignment == number), seed=seed) for number in range(len(plan.groups))]


def asked_clients(plan: Plan, orders: list[IntArray], *, round_number: int) -> IntArray:
    """Those whose turn it is, in increasing order; ``orders`` has each group's clients as they stand on a circle."""
    asked = [order[asked_positions(plan, len(order), round_number=round_number)] for order in orders]
    return np.sort(np.concatenate(asked))


def tossed(updates: Updates, plan: Plan, assignment: IntArray, *, seed: int) -> Updates:
    """Of those asked, trains whose coin says so; the others are not among the chunks, and send zero.

    Of a plan with Poisson sampling everybody who is asked trains.
    """
    if not plan.is_rotation:
        return updates

    def trained(state: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        heads = sample_clients(plan, assignment, state.participations, seed=seed, round_number=state.round_number)
        return updates(state, np.intersect1d(clients, heads))

    return trained


def poisson(plan: Plan, assignment: IntArray, *, seed: int) -> Sample:
    """A simulation's sample, whose coins follow from ``seed``."""
    return lambda state: sample_clients(
        plan, assignment, state.participations, seed=seed, round_number=state.round_number
    )


def sample_clients(
    plan: Plan, assignment: IntArray, participations: IntArray, *, seed: int, round_number: int
) -> IntArray:
    """The clients of one round, in increasing order."""
    coins = streams.generator(seed, "sample", round_number=round_number).random(len(assignment))
    return chosen_clients(plan, assignment, participations, coins)


def chosen_clients(plan: Plan, assignment: IntArray, participations: IntArray, coins: NDArray[np.float64]) -> IntArray:
    """Those whose coin, uniform on [0, 1), is below their group's rate; in increasing order."""
    rates = np.array([group.sampling_rate for group in plan.groups])
    taking_part = coins < rates[assignment]
    if plan.max_participations is not None:
        taking_part &= participations < plan.max_participations
    return np.flatnonzero(taking_part)


def system_coins(num: int) -> NDArray[np.float64]:
    """Multiples of 2^-53 from the operating system's generator: nobody can tell who will be sampled."""
    words = np.frombuffer(os.urandom(8 * num), dtype="<u8")
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
