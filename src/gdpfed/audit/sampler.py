"""Does the cohort of all the others tell whether a canary is there?

Place: beside the canaries: what they cannot show. Coins that are tossed independently tell nothing of each other. A
cohort of fixed size does: who is in takes another's place, so if every other client works for the adversary, one of
them missing gives the canary away, whatever the noise. That needs one canary at a time: many small populations, a few
rounds each, half of them with their canary and half without.

The claim is that of the release view, whose epsilon holds for any knowledge about the others.

Guarantees (tests of the same name):
  independent_coins_tell_nothing   the real sampler is not flagged.
  fixed_size_tells_everything      a cohort of fixed size is.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdpfed.audit.bounds import ScoredCanaries
from gdpfed.audit.canaries import SEEDS
from gdpfed.audit.privacy_curves import AuditedGroup
from gdpfed.planning.plan import Plan
from gdpfed.training.sampling import sample_clients

__all__ = ["NUM_POPULATIONS", "Sampler", "rounds_watched", "watch_the_others"]

NUM_POPULATIONS = 1000
# There is one test worth making, so few have to choose it.
_CHOOSE_EVERY = 5
# The cohort of a population; the smallest in which a place can be taken.
_COHORT = 3


class Sampler(Protocol):
    """Who takes part: `sampling.sample_clients`, or what a control puts in its place."""

    def __call__(
        self,
        plan: Plan,
        assignment: NDArray[np.int64],
        participations: NDArray[np.int64],
        *,
        seed: int,
        round_number: int,
    ) -> NDArray[np.int64]:
        """The clients of one round."""
        ...


def rounds_watched(audited: AuditedGroup) -> int:
    """So many that a canary is sampled in one of them with a probability of a quarter, or in 25."""
    return min(int(np.clip(np.ceil(0.3 / audited.group.sampling_rate), 5, 25)), audited.plan.num_rounds)


def watch_the_others(audited: AuditedGroup, *, sampler: Sampler = sample_clients) -> ScoredCanaries:
    """One score for each population: how many of the others did not take part."""
    num_others = int(np.clip(np.ceil(_COHORT / audited.group.sampling_rate), 2, 5000))
    rounds = rounds_watched(audited)
    inside = np.arange(NUM_POPULATIONS) < NUM_POPULATIONS // 2
    missing = np.empty(NUM_POPULATIONS)
    for population in range(NUM_POPULATIONS):
        # The canary, if there is one, is the first.
        size = num_others + int(inside[population])
        assignment = np.full(size, audited.group_index, dtype=np.int64)
        participations = np.zeros(size, dtype=np.int64)
        seen = 0
        for round_number in range(rounds):
            seed = audited.seed * SEEDS + population
            sampled = sampler(audited.plan, assignment, participations, seed=seed, round_number=round_number)
            participations[sampled] += 1
            seen += int((sampled >= int(inside[population])).sum())
        missing[population] = num_others * rounds - seen
    choose = np.arange(NUM_POPULATIONS) % _CHOOSE_EVERY == 0
    return ScoredCanaries(scores={"others missing": missing}, inside=inside, choose=choose)
