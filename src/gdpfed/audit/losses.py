"""Does a sum that is lost tell that somebody was there?

Place: beside the canaries: what only small cohorts show. Where thousands of canaries share a cohort, its losses are the
same for those inside and outside. So here are many populations of one client, half of them with it and half without,
and each has its own rounds, attempts and losses. Losses are as frequent as the protocol allows, whatever is expected:
whoever wants to know may cause them.

A population's client tosses the real sampler's coin in each round. Rounds without it are empty cohorts, in both kinds
of populations. They are released, too, but all of them in one call, each with coordinates of its own; and since there
is only one group in such a population, only its sum is made. Sums have a few coordinates besides the client's.

Three scores, over all rounds of a population:
  sums without noise   how many are zero, or so near to it that nothing was added.
  likelihood ratio     as in the release view.
  squares              of all coordinates: noise of another size where somebody took part.
The last two are in whole stds: few populations choose the test, and would find thresholds that mean nothing. The claim
is that of the release view.

Guarantees (tests of the same name):
  lost_sums_tell_nothing      with and without its client a population releases noise: the real path is not flagged.
  zeros_tell_of_somebody      a path that releases zeros for a lost sum is.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gdpfed.audit.bounds import ScoredCanaries
from gdpfed.audit.canaries import SEEDS, MakeRelease, integer_path
from gdpfed.audit.integer_release import every_size_complete
from gdpfed.audit.privacy_curves import AuditedGroup, BoolArray, FloatArray
from gdpfed.audit.scores import release_scores
from gdpfed.training.rounds import IntArray, TrainingState, initial_state
from gdpfed.training.sampling import sample_clients

__all__ = ["LOSS_RATE", "NUM_LOSSY", "rounds_with_losses", "watch_losses"]

NUM_LOSSY = 6000
LOSS_RATE = 0.45
_CHOOSE_EVERY = 10
_NUM_PARAMS = 4
# Of the planned noise std.
_NOTHING = 1e-9
_MOST_ROUNDS = 200
# Beyond the seeds of batches and of ideal canaries.
_POPULATIONS = 3 * 2**30


def rounds_with_losses(audited: AuditedGroup) -> int:
    """So many that a client is sampled once or twice, or all there are."""
    return int(min(np.ceil(1.5 / audited.group.sampling_rate), audited.plan.num_rounds, _MOST_ROUNDS))


def watch_losses(
    audited: AuditedGroup, *, colluders: float = 0.0, make_release: MakeRelease = integer_path.make_release
) -> ScoredCanaries:
    """The scores of all populations."""
    group = audited.group
    inside = np.arange(NUM_LOSSY) < NUM_LOSSY // 2
    sums = _released(audited, colluders, make_release, num_inside=int(inside.sum())) / group.noise_std
    choose = np.arange(NUM_LOSSY) % _CHOOSE_EVERY == 0
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
    tolerance = every_size_complete(dropout=LOSS_RATE, colluders=colluders)
    size = rounds * NUM_LOSSY * _NUM_PARAMS
    nobody = np.zeros(0, dtype=np.int64)
    seeds = seed * SEEDS + _POPULATIONS
    release = make_release(
        alone, nobody, lambda _state, _clients: iter(()), seed=seeds, num_params=size, tolerance=tolerance
    )
    empty = release(initial_state(torch.zeros(size), 0), nobody)
    sums = empty.sums[0].numpy().reshape(rounds, NUM_LOSSY, _NUM_PARAMS)
    state = initial_state(torch.zeros(_NUM_PARAMS), 1)
    client, assignment = np.zeros(1, dtype=np.int64), np.full(1, position, dtype=np.int64)
    update = torch.zeros((1, _NUM_PARAMS), dtype=torch.float64)
    update[0, 0] = alone.groups[position].clip_norm

    def updates(_: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        if len(clients):
            yield clients, update

    members = np.full(num_inside, position, dtype=np.int64)
    participations = np.zeros(num_inside, dtype=np.int64)
    for round_number in range(rounds):
        # Coins do not depend on who else is in a population: `sampler` looks at that.
        sampled = sample_clients(alone, members, participations, seed=seed, round_number=round_number)
        participations[sampled] += 1
        for population in sampled.tolist():
            release = make_release(
                alone,
                assignment,
                updates,
                seed=seeds + 1 + population,
                num_params=_NUM_PARAMS,
                tolerance=tolerance,
            )
            released = release(replace(state, round_number=round_number), client)
            sums[round_number, population] = released.sums[0].numpy()
    return sums
