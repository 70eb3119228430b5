"""Who takes part in a round.

Place: the first step of a round. Poisson: every client tosses its own coin, with its group's probability, each round. A
client that reached `max_participations` is left out. In a simulation the coins follow from the seed; in a deployment
the sample is secret, and the coins (`system_coins`) come from the operating system.

Guarantees (tests of the same name):
  cohort_is_poisson           the cohort's variance is n q (1 - q), not 0 as for a fixed size.
  coins_are_independent       between clients and between rounds.
  cap_is_kept                 no client takes part more often than the plan allows.
  system_coins_are_fair       and never the same twice.
"""

import os

import numpy as np
from numpy.typing import NDArray

from gdpfed import streams
from gdpfed.planning.plan import Plan
from gdpfed.training.rounds import IntArray, Sample

__all__ = ["chosen_clients", "poisson", "sample_clients", "system_coins"]


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
