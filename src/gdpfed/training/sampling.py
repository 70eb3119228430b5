"""Who takes part in a round.

Place: the first step of a round. Poisson: every client tosses its own coin, with its group's probability, each round. A
client that reached `max_participations` is left out. The sample is secret in a deployment; in a simulation it follows
from the seed.

Guarantees (tests of the same name):
  cohort_is_poisson           the cohort's variance is n q (1 - q), not 0 as for a fixed size.
  coins_are_independent       between clients and between rounds.
  cap_is_kept                 no client takes part more often than the plan allows.
"""

import numpy as np
from numpy.typing import NDArray

from gdpfed import streams
from gdpfed.planning.plan import Plan

__all__ = ["sample_clients"]


def sample_clients(
    plan: Plan, assignment: NDArray[np.int64], participations: NDArray[np.int64], *, seed: int, round_number: int
) -> NDArray[np.int64]:
    """The clients of one round, in increasing order."""
    rates = np.array([group.sampling_rate for group in plan.groups])
    coins = streams.generator(seed, "sample", round_number=round_number).random(len(assignment))
    taking_part = coins < rates[assignment]
    if plan.max_participations is not None:
        taking_part &= participations < plan.max_participations
    return np.flatnonzero(taking_part)
