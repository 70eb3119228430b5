"""Canary clients: orthogonal updates through the real sampler, clip, encoding, noise and sum.

Place: the front of the audit. Each canary has a coordinate of its own and sends ten times the clip norm along it, in
every round it is sampled for. Half of the canaries are in the population. The others toss their coins too, which only
the server's view needs, and are left out of every sum. Coordinates do not meet, so thousands of canaries are judged in
one training, and their scores are independent of each other.

Sums are looked at as they are released, before Top-k, which can only hide something: the server sees them so.

Integer sums lose clients as the secure sum does, if ``tolerance`` says so. Then the server's view has sums of its own
(`integer_release`), and who took part is who was sampled: a canary that vanished is missed there, which costs power.

Canaries go in batches, each a training of its own with its own seed, so that a batch's cohort has about ten clients,
or a few where the rate is small.

Guarantees (tests of the same name):
  only_canaries_inside_move_the_sum    by the clip norm, in the rounds that they were sampled for.
  canaries_follow_the_seed             the same seed gives the same scores, another one others.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.audit.audited_group import AuditedGroup
from gdpfed.audit.bounds import ScoredCanaries
from gdpfed.audit.integer_release import IntegerRelease, SeenByTheServer, every_size_complete
from gdpfed.audit.scores import release_scores, repeat_scores, server_scores
from gdpfed.errors import InputError
from gdpfed.planning.plan import Group, Plan
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.rounds import IntArray, Release, TrainingState, Updates, initial_state
from gdpfed.training.sampling import sample_clients

__all__ = [
    "MECHANISMS", "SEEDS", "CanaryPath", "MakeRelease", "Observed", "ViewedCanaries", "float_path",
    "integer_path", "observe", "scored", "send_canaries",
]  # fmt: skip

MECHANISMS = ("float", "integer")

# Of the clip norm: that updates are bounded is part of what is audited.
_TOO_LONG = 10.0
_CHUNK = 128
# A batch has the seed SEEDS * seed + its number.
SEEDS = 2**32


class MakeRelease(Protocol):
    """Makes what releases sums of so many coordinates, with such losses."""

    def __call__(
        self,
        plan: Plan,
        assignment: IntArray,
        updates: Updates,
        /,
        *,
        seed: int,
        num_params: int,
        tolerance: Tolerance,
    ) -> Release:
        """For one plan and its clients."""
        ...


@dataclass(frozen=True, kw_only=True)
class CanaryPath:
    """What canaries are sent through. Only controls change anything: ``plan`` is what the mechanism obeys where that is
    not the plan that is claimed, ``noise_round`` the round whose noise is used."""

    make_release: MakeRelease
    plan: Callable[[Plan], Plan] = lambda plan: plan
    noise_round: Callable[[int], int] = lambda round_number: round_number


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """One batch: (rounds, canaries). ``sums``, and those that the server is left with, in planned noise stds;
    ``taking_part`` also of those outside."""

    sums: NDArray[np.float64]
    server_sums: NDArray[np.float64]
    taking_part: NDArray[np.bool_]
    inside: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewedCanaries:
    """The same canaries as two adversaries see them."""

    release: ScoredCanaries
    server: ScoredCanaries


float_path = CanaryPath(
    make_release=lambda plan, assignment, updates, *, seed, **_sizes: float_release(
        plan, assignment, updates, seed=seed
    )
)
integer_path = CanaryPath(make_release=IntegerRelease)


def observe(path: CanaryPath, audited: AuditedGroup, *, tolerance: Tolerance | None = None) -> Observed:
    """All canaries in one batch, from the first round to the last."""
    plan, group, num_canaries, seed = audited.plan, audited.group, audited.num_canaries, audited.seed
    inside = np.arange(num_canaries) < num_canaries // 2
    assignment = np.full(num_canaries, audited.group_index, dtype=np.int64)
    state = initial_state(torch.zeros(num_canaries), num_canaries)
    participations = np.zeros(num_canaries, dtype=np.int64)
    sums = np.empty((plan.num_rounds, num_canaries))
    server_sums = np.empty_like(sums)
    taking_part = np.zeros((plan.num_rounds, num_canaries), dtype=np.bool_)

    def updates(_: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
        for start in range(0, len(clients), _CHUNK):
            chunk = clients[start : start + _CHUNK]
            rows = torch.zeros((len(chunk), num_canaries), dtype=torch.float64)
            rows[torch.arange(len(chunk)), torch.from_numpy(chunk)] = _TOO_LONG * group.clip_norm
            yield chunk, rows

    release = path.make_release(
        path.plan(plan),
        assignment,
        updates,
        seed=seed,
        num_params=num_canaries,
        tolerance=tolerance or every_size_complete(),
    )
    for round_number in range(plan.num_rounds):
        sampled = sample_clients(plan, assignment, participations, seed=seed, round_number=round_number)
        participations[sampled] += 1
        taking_part[round_number, sampled] = True
        # The noise has the address of this state's round.
        addressed = replace(state, round_number=path.noise_round(round_number))
        released = release(addressed, sampled[inside[sampled]])
        sums[round_number] = released.sums[audited.sum_index].numpy()
        known = released.server_sums if isinstance(released, SeenByTheServer) else released.sums
        server_sums[round_number] = known[audited.sum_index].numpy()
    stds, server_stds = sums / group.noise_std, server_sums / group.noise_std
    return Observed(sums=stds, server_sums=server_stds, taking_part=taking_part, inside=inside)


def send_canaries(path: CanaryPath, audited: AuditedGroup, *, tolerance: Tolerance | None = None) -> ViewedCanaries:
    """At least as many canaries as are wanted, in batches, and their scores."""
    wanted = audited.num_canaries
    if wanted < 200:
        raise InputError(f"expected 200 canaries or more, got {wanted}: fewer cannot show anything")
    # With about ten inside in a cohort, where that is possible.
    size = min(2 * int(np.clip(10 / audited.group.sampling_rate, 100, 2000)), 2 * (wanted // 2))
    batches = (
        replace(audited, num_canaries=size, seed=audited.seed * SEEDS + number) for number in range(-(-wanted // size))
    )
    return scored((observe(path, batch, tolerance=tolerance) for batch in batches), audited.group)


def scored(batches: Iterable[Observed], group: Group) -> ViewedCanaries:
    """The scores of all batches; every second canary chooses the test."""
    noise, rate = group.noise_multiplier, group.sampling_rate
    columns = []
    for batch in batches:
        choosing = np.arange(len(batch.inside)) % 2 == 0
        columns.append(
            (
                release_scores(batch.sums, noise_multiplier=noise, sampling_rate=rate),
                server_scores(batch.server_sums, batch.taking_part, noise_multiplier=noise),
                repeat_scores(batch.sums, choose=choosing),
                batch.inside,
                choosing,
            )
        )
    by_release, by_server, repeated, inside, choose = (np.concatenate(column) for column in zip(*columns, strict=True))
    release, server = (
        ScoredCanaries(scores={"likelihood ratio": ratio, "repeated noise": repeated}, inside=inside, choose=choose)
        for ratio in (by_release, by_server)
    )
    return ViewedCanaries(release=release, server=server)
