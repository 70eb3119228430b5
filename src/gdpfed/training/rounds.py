"""One round of every method: sample, train, clip, noise, sum, sparsify, update.

Place: the heart of training; with `planning/plan.py` this is the method. `run_round` is state in, state out: the same
plan, state and seed give the same bytes. `reference.py` is the same round in plain loops, and one suite runs against
both. How clipped updates become released sums is an argument: `float_release`, the simulator's seeded float noise, or
`secure_sum.SecureRelease`, the integer protocol.

Guarantees (tests of the same name):
  off_switches_are_fedavg       no noise, no clip, everything kept, one group: FedAvg.
  fast_equals_reference         for every method.
  released_sums_match_the_plan  the noise on the released sums has the planned variance.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan
from gdpfed.training import mechanism
from gdpfed.training.aggregate import averaged, combine
from gdpfed.training.sampling import sample_clients
from gdpfed.training.sparsify import keep_largest

__all__ = [
    "Release",
    "Released",
    "RoundRecord",
    "TrainingState",
    "Updates",
    "float_release",
    "initial_state",
    "released_sums",
    "run_round",
    "sparsified",
]

# (parameters, clients) -> chunks of (clients, updates)
Updates = Callable[[Tensor, NDArray[np.int64]], Iterator[tuple[NDArray[np.int64], Tensor]]]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingState:
    """All that one round hands to the next: the model, how often each client took part, and the average of all models
    so far (float64), after the first round, if the plan has averaging."""

    round_number: int
    parameters: Tensor
    participations: NDArray[np.int64]
    average: Tensor | None = None

    @property
    def model(self) -> Tensor:
        """What is evaluated and kept: the averaged model where there is one. Clients train from ``parameters``."""
        return self.parameters if self.average is None else self.average.float()


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What a simulation may tell of a round. A deployment tells nobody the cohort.

    ``dropped`` updates were not finite and count as zero. Of secure sums: so many clients ``vanished`` (in all
    attempts).
    """

    round_number: int
    cohort: tuple[int, ...]
    clipped: int
    dropped: int
    update_norm: float
    vanished: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Released:
    """What left the sums of a round: one tensor if the plan is pooled, else one for each group."""

    sums: list[Tensor]
    clipped: int
    dropped: int
    vanished: int = 0


class Release(Protocol):
    """Trains the clients and releases their noisy sums."""

    def __call__(
        self,
        state: TrainingState,
        *,
        plan: Plan,
        assignment: NDArray[np.int64],
        clients: NDArray[np.int64],
        updates: Updates,
        seed: int,
    ) -> Released:
        """What is released of one round."""
        ...


def initial_state(parameters: Tensor, num_clients: int) -> TrainingState:
    """Before the first round."""
    return TrainingState(
        round_number=0, parameters=parameters.clone(), participations=np.zeros(num_clients, dtype=np.int64)
    )


def float_release(
    state: TrainingState,
    *,
    plan: Plan,
    assignment: NDArray[np.int64],
    clients: NDArray[np.int64],
    updates: Updates,
    seed: int,
) -> Released:
    """Float sums, and seeded float noise on each: for simulations."""
    sums, clipped, dropped = _clipped_sums(state.parameters, plan, assignment, clients, updates)
    released = released_sums(plan, sums, seed=seed, round_number=state.round_number)
    return Released(sums=released, clipped=clipped, dropped=dropped)


def run_round(
    state: TrainingState,
    *,
    plan: Plan,
    assignment: NDArray[np.int64],
    updates: Updates,
    layer_sizes: list[int],
    seed: int,
    release: Release = float_release,
) -> tuple[TrainingState, RoundRecord]:
    """One round; ``updates`` trains the sampled clients and yields their updates in order."""
    if state.round_number >= plan.num_rounds:
        raise InputError(f"the plan has {plan.num_rounds} rounds, all of which were run: make a plan with more")
    clients = sample_clients(plan, assignment, state.participations, seed=seed, round_number=state.round_number)
    released = release(state, plan=plan, assignment=assignment, clients=clients, updates=updates, seed=seed)
    update = combine(plan, released.sums, layer_sizes)
    participations = state.participations.copy()
    participations[clients] += 1
    record = RoundRecord(
        round_number=state.round_number,
        cohort=tuple(int(count) for count in np.bincount(assignment[clients], minlength=len(plan.groups))),
        clipped=released.clipped,
        dropped=released.dropped,
        update_norm=float(mechanism.norms(update.unsqueeze(0))[0]),
        vanished=released.vanished,
    )
    parameters = (state.parameters.double() + update).float()
    following = TrainingState(
        round_number=state.round_number + 1,
        parameters=parameters,
        participations=participations,
        average=averaged(plan, state.average, parameters, round_number=state.round_number),
    )
    return following, record


def _clipped_sums(
    parameters: Tensor, plan: Plan, assignment: NDArray[np.int64], clients: NDArray[np.int64], updates: Updates
) -> tuple[list[Tensor], int, int]:
    """Each group's sum of clipped, scaled updates, and how many were clipped or zeroed.

    Float64, added one by one in the clients' order: the bits do not depend on the chunks.
    """
    sums = [torch.zeros(len(parameters), dtype=torch.float64) for _ in plan.groups]
    clipped = dropped = 0
    for chunk, moved in updates(parameters, clients):
        groups = assignment[chunk]
        for place in np.unique(groups):
            group = plan.groups[place]
            rows = moved[torch.from_numpy(np.flatnonzero(groups == place))]
            bounded, lengths = mechanism.clip_and_measure(rows, clip_norm=group.clip_norm)
            dropped += int((~torch.isfinite(lengths)).sum())
            clipped += int((torch.isfinite(lengths) & (lengths > group.clip_norm)).sum())
            for row in bounded:
                sums[place] += row * group.scale
    return sums, clipped, dropped


def released_sums(plan: Plan, sums: list[Tensor], *, seed: int, round_number: int) -> list[Tensor]:
    """What leaves the sum, noise included, then sparsified: one tensor if pooled, else one for each group."""
    if plan.release == "pooled":
        total = torch.stack(sums).sum(0)
        std = plan.groups[0].noise_std
        return [total + mechanism.noise(len(total), std=std, seed=seed, round_number=round_number, place=0)]
    noisy = []
    for place, (group, total) in enumerate(zip(plan.groups, sums, strict=True)):
        drawn = total
        if group.noise_std:
            drawn = total + mechanism.noise(
                len(total), std=group.noise_std, seed=seed, round_number=round_number, place=place
            )
        noisy.append(drawn)
    return sparsified(plan, noisy)


def sparsified(plan: Plan, noisy: list[Tensor]) -> list[Tensor]:
    """Top-k of each group's noisy sum; a pooled sum is left as it is."""
    if plan.release == "pooled":
        return noisy
    return [
        keep_largest(total, num_kept=max(1, round(group.keep_fraction * len(total))))
        for group, total in zip(plan.groups, noisy, strict=True)
    ]
