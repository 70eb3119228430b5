"""What is checked of the mechanism and of the sampler: of the real code and, in test_training_teeth.py, of wrong code.

A mechanism is a function release(plan, groups, updates, seed=, round_number=) -> released sums, where ``updates`` is
(clients, params) and ``groups`` says each row's group. A sampler is a function sample(plan, assignment, participations,
seed=, round_number=) -> clients. Every single check fails for right code with probability 1e-6 (or less).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from gdpfed.planning.plan import Plan
from gdpfed.training import rounds
from gdpfed.training.releases import float_sums

FALSE_ALARM = 1e-6
# 2,000,000 coordinates of every sum: the chi-square quantiles at 1e-6 are then 0.9951 and 1.0049 times the variance, so
# right code fails once in a million, and a variance that is 1 % off passes once in a million.
PARAMS, NOISE_ROUNDS = 500_000, 4
# 600 rounds: at 1e-6 the quantiles are 0.74 and 1.31 times the variance of the cohort, so a cohort of fixed size
# (variance 0) and one coin for a whole group (n times the variance) are always seen, and half or twice the variance is
# missed with a probability below 1e-11.
SAMPLE_ROUNDS = 600

Release = Callable[..., list[Tensor]]
Sampler = Callable[..., NDArray[np.int64]]
_Z = float(stats.norm.isf(FALSE_ALARM / 2))


def release(plan: Plan, groups: list[int], updates: Tensor, *, seed: int, round_number: int) -> list[Tensor]:
    """The real one, from the updates of a cohort on."""
    clients = np.arange(len(groups))
    sums, _, _ = float_sums.clipped_sums(
        rounds.initial_state(torch.zeros(updates.shape[1]), len(groups)),
        plan,
        np.array(groups, dtype=np.int64),
        clients,
        lambda _, chosen: iter([(chosen, updates)] if len(chosen) else []),
    )
    return rounds.sparsified(plan, float_sums.with_noise(plan, sums, seed=seed, round_number=round_number))


def variance_window(num: int) -> tuple[float, float]:
    """Where the mean square of ``num`` standard normal numbers lies, but for FALSE_ALARM."""
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], num) / num
    return float(low), float(high)


def check_noise(mechanism: Release, plan: Plan, stds: list[float]) -> None:
    """Sums of clients that send zero: two clients in each group, NOISE_ROUNDS rounds."""
    groups = [place for place in range(len(plan.groups)) for _ in range(2)]
    zeros = torch.zeros(len(groups), PARAMS, dtype=torch.float64)
    draws: dict[tuple[int, int], NDArray[np.float64]] = {}
    for round_number in range(NOISE_ROUNDS):
        released = mechanism(plan, groups, zeros, seed=21, round_number=round_number)
        assert len(released) == len(stds)
        for place, (noisy, std) in enumerate(zip(released, stds, strict=True)):
            draws[place, round_number] = noisy.numpy() / std
    low, high = variance_window(PARAMS * NOISE_ROUNDS)
    assert 0.995 < low < high < 1.005
    for place in range(len(stds)):
        mine = [draws[place, round_number] for round_number in range(NOISE_ROUNDS)]
        variance = float(np.mean([np.mean(draw**2) for draw in mine]))
        assert low <= variance <= high, f"variance {variance:.4f} of that planned, in sum {place}"
        mean = float(np.mean([draw.mean() for draw in mine])) * math.sqrt(PARAMS * NOISE_ROUNDS)
        assert abs(mean) <= _Z, f"mean {mean:.1f} standard errors from 0, in sum {place}"
        assert stats.kstest(mine[0][:100_000], "norm").pvalue >= FALSE_ALARM, f"not Gaussian, in sum {place}"
    for one, two in itertools.combinations(draws, 2):
        together = float(np.dot(draws[one], draws[two])) / math.sqrt(PARAMS)
        assert abs(together) <= _Z, f"the noise of {one} and {two} (sum, round) is not independent"


def check_contributions(mechanism: Release, plan: Plan) -> None:
    """One long update, with and without: the noise is at the same address, so the difference is the client's own."""
    direction = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nothing = torch.zeros(1, 1000, dtype=torch.float64)
    stds = [group.noise_multiplier * group.clip_norm * group.scale for group in plan.groups]
    for place, group in enumerate(plan.groups):
        sent = [mechanism(plan, [place], update, seed=1, round_number=0) for update in (1e6 * direction, nothing)]
        moved = math.sqrt(sum(float((one - two).norm() ** 2) for one, two in zip(*sent, strict=True)))
        expected = stds[place] / group.noise_multiplier
        assert abs(moved - expected) <= 1e-9 * expected, f"a client moves {moved}, expected {expected}"


def check_non_finite(mechanism: Release, plan: Plan) -> None:
    """Updates with NaN, infinity or a norm beyond float64 count as zero."""
    rows = torch.randn(5, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[1, 3], rows[2, 4], rows[3, 5], rows[4] = math.nan, math.inf, -math.inf, 1e200
    groups = [0, 0, len(plan.groups) - 1, 0, 0]
    alone = mechanism(plan, groups[:1], rows[:1], seed=1, round_number=0)
    together = mechanism(plan, groups, rows, seed=1, round_number=0)
    for one, two in zip(alone, together, strict=True):
        assert torch.equal(one, two), "a broken update moved a sum"


def check_sampler(sample: Sampler, plan: Plan, assignment: NDArray[np.int64]) -> None:
    """Cohort, clients, rounds: each as if every client tossed its own coin every round."""
    plan = dataclasses.replace(plan, max_participations=None)
    nobody = np.zeros(len(assignment), dtype=np.int64)
    present = np.zeros((SAMPLE_ROUNDS, len(assignment)))
    for round_number in range(SAMPLE_ROUNDS):
        present[round_number, sample(plan, assignment, nobody, seed=2, round_number=round_number)] = 1
    low, high = variance_window(SAMPLE_ROUNDS)
    for place, group in enumerate(plan.groups):
        rate = group.sampling_rate
        coins = (present[:, assignment == place] - rate) / math.sqrt(rate * (1 - rate))
        num = coins.shape[1]
        assert abs(coins.sum()) <= _Z * math.sqrt(coins.size), f"the rate is {present[:, assignment == place].mean()}"
        cohort = float(np.mean(coins.sum(1) ** 2)) / num
        assert low <= cohort <= high, f"the cohort's variance is {cohort:.2f} of n q (1 - q)"
        fair = variance_window(num)
        often = float(np.mean(coins.sum(0) ** 2)) / SAMPLE_ROUNDS
        assert fair[0] <= often <= fair[1], f"some clients come too often: {often:.2f} of the variance"
        following = float((coins[:-1] * coins[1:]).sum()) / math.sqrt(coins[1:].size)
        assert abs(following) <= _Z, "a round depends on the one before"
        between = float((coins[:, :-1] * coins[:, 1:]).sum()) / math.sqrt(coins[:, 1:].size)
        assert abs(between) <= _Z, "a client depends on its neighbour"
