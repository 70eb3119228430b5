"""Many small populations, half with their canary and half without: what canaries that share a cohort cannot show.

Place: beside the canaries. The claim is that of the release view, which holds for any knowledge about the others.

Does the cohort of all the others tell whether a canary is there? Coins that are tossed independently tell nothing of
each other. A cohort of fixed size does: who is in takes another's place, so if every other client works for the
adversary, one of them missing gives the canary away, whatever the noise.

Does a sum that is lost tell that somebody was there? Here a population is one client, with its own rounds, attempts and
losses. Losses are as frequent as the protocol allows, whatever is expected: whoever wants to know may cause them. The
client tosses the real sampler's coin in each round. Rounds without it are empty cohorts, in both kinds of populations.
They are released, too, but all of them in one call, each with coordinates of its own; and since there is only one group
in such a population, only its sum is made. Sums have a few coordinates besides the client's. Three scores, over all
rounds of a population:
  sums without noise   how many are zero, or so near to it that nothing was added.
  likelihood ratio     as in the release view.
  squares              of all coordinates: noise of another size where somebody took part.
The last two are in whole stds: few populations choose the test, and would find thresholds that mean nothing.

Guarantees (tests of the same name):
  independent_coins_tell_nothing   the real sampler is not flagged.
  fixed_size_tells_everything      a cohort of fixed size is.
  lost_sums_tell_nothing           with and without its client a population releases noise: the path is not flagged.
  zeros_tell_of_somebody           a path that releases zeros for a lost sum is.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gdpfed.audit.bounds import ScoredCanaries
from gdpfed.audit.canaries import SEEDS, MakeRelease, first_half, integer_path
from gdpfed.audit.integer_release import every_size_complete
from gdpfed.audit.privacy_curves import AuditedGroup, BoolArray, FloatArray
from gdpfed.audit.scores import release_scores
from gdpfed.planning.plan import Plan
from gdpfed.training.rounds import IntArray, Sample, TrainingState, initial_state
from gdpfed.training.sampling import poisson, sample_clients

__all__ = [
    "LOSS_RATE", "NUM_LOSSY", "NUM_POPULATIONS", "Sampler", "rounds_watched", "rounds_with_losses", "watch_losses",
    "watch_the_others",
]  # fmt: skip

# There is one test of the others worth making, so few have to choose it.
NUM_POPULATIONS, _OTHERS_CHOOSE_EVERY = 1000, 5
# The cohort of a population; the smallest in which a place can be taken.
_COHORT = 3

NUM_LOSSY, _LOSSES_CHOOSE_EVERY = 6000, 10
LOSS_RATE = 0.45
_NUM_PARAMS = 4
# Of the planned noise std.
_NOTHING = 1e-9
_MOST_ROUNDS = 200
# Beyond the seeds of batches and of ideal canaries.
_POPULATIONS = 3 * 2**30


# Of a plan, its clients' groups and a seed: `sampling.poisson`, or what a control puts in its place.
Sampler = Callable[[Plan, IntArray, int], Sample]


def rounds_watched(audited: AuditedGroup) -> int:
    """So many that a canary is sampled in one of them with a probability of a quarter, or in 25."""
    return min(int(np.clip(np.ceil(0.3 / audited.group.sampling_rate), 5, 25)), audited.plan.num_rounds)


def watch_the_others(
    audited: AuditedGroup, *, sampler: Sampler = lambda plan, groups, seed: poisson(plan, groups, seed=seed)
) -> ScoredCanaries:
    """One score for each population: how many of the others did not take part."""
    num_others = int(np.clip(np.ceil(_COHORT / audited.group.sampling_rate), 2, 5000))
    rounds = rounds_watched(audited)
    inside = first_half(NUM_POPULATIONS)
    missing = np.empty(NUM_POPULATIONS)
    for population in range(NUM_POPULATIONS):
        # The canary, if there is one, is the first.
        num_canaries = int(inside[population])
        state = initial_state(torch.zeros(1), num_others + num_canaries)
        assignment = np.full(num_others + num_canaries, audited.group_index, dtype=np.int64)
        sample = sampler(audited.plan, assignment, audited.seed * SEEDS + population)
        seen = 0
        for round_number in range(rounds):
            sampled = sample(replace(state, round_number=round_number))
            state.participations[sampled] += 1
            seen += int((sampled >= num_canaries).sum())
        missing[population] = num_others * rounds - seen
    choose = np.arange(NUM_POPULATIONS) % _OTHERS_CHOOSE_EVERY == 0
    return ScoredCanaries(scores={"others missing": missing}, inside=inside, choose=choose)


def rounds_with_losses(audited: AuditedGroup) -> int:
    """So many that a client is sampled once or twice, or all there are."""
    return int(min(np.ceil(1.5 / audited.group.sampling_rate), audited.plan.num_rounds, _MOST_ROUNDS))


def watch_losses(
    audited: AuditedGroup, *, colluders: float = 0.0, make_release: MakeRelease = integer_path.make_release
) -> ScoredCanaries:
    """The scores of all populations."""
    group = audited.group
    inside = first_half(NUM_LOSSY)
    sums = _released(audited, colluders, make_release, num_inside=int(inside.sum())) / group.noise_std
    choose = np.arange(NUM_LOSSY) % _LOSSES_CHOOSE_EVERY == 0
    ratios = release_scores(sums[:, :, 0], noise_multiplier=group.noise_multiplier, sampling_rate=group.sampling_rate)
    scores = {
        "sums without noise": (np.abs(sums).max(axis=2) < _NOTHING).sum(axis=0).astype(np.float64),
        "likelihood ratio": _in_stds(ratios, choose),
        "squares": _in_stds(np.square(sums).sum(axis=(0, 2)), choose),
    }
    return ScoredCanaries(scores=scores, inside=inside, choose=choose)


def _in_stds(values: FloatArray, choose: BoolArray) -> FloatArray:
    whole: FloatArray = np.floor(values / values[choose].std())
    return whole


def _released(audited: AuditedGroup, colluders: float, make_release: MakeRelease, *, num_inside: int) -> FloatArray:
    """(rounds, populations, coordinates); those with their client come first."""
    seed, rounds = audited.seed, rounds_with_losses(audited)
    alone, position = audited.plan, audited.group_index
    if alone.release != "pooled":
        alone, position = replace(alone, groups=(alone.groups[position],)), 0
    make = functools.partial(make_release, tolerance=every_size_complete(dropout=LOSS_RATE, colluders=colluders))
    seeds = seed * SEEDS + _POPULATIONS
    update = torch.zeros((1, _NUM_PARAMS), dtype=torch.float64)
    update[0, 0] = alone.groups[position].clip_norm

    def updates(_: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        if len(clients):
            yield clients, update

    size, nobody = rounds * NUM_LOSSY * _NUM_PARAMS, np.zeros(0, dtype=np.int64)
    release = make(alone, nobody, updates, seed=seeds, num_params=size)
    empty = release(initial_state(torch.zeros(size), 0), nobody)
    sums = empty.sums[0].numpy().reshape(rounds, NUM_LOSSY, _NUM_PARAMS)
    state = initial_state(torch.zeros(_NUM_PARAMS), 1)
    client, assignment = np.zeros(1, dtype=np.int64), np.full(1, position, dtype=np.int64)
    members = np.full(num_inside, position, dtype=np.int64)
    participations = np.zeros(num_inside, dtype=np.int64)
    for round_number in range(rounds):
        # Coins do not depend on who else is in a population: `watch_the_others` looks at that.
        sampled = sample_clients(alone, members, participations, seed=seed, round_number=round_number)
        participations[sampled] += 1
        for population in sampled.tolist():
            release = make(alone, assignment, updates, seed=seeds + 1 + population, num_params=_NUM_PARAMS)
            released = release(replace(state, round_number=round_number), client)
            sums[round_number, population] = released.sums[0].numpy()
    return sums
