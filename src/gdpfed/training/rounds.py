"""One round of every method: sample, release, keep the largest, combine, update.

Place: the heart of training; with `planning/plan.py` this is the method. `run_round` is state in, state out: the same
plan, state and seed give the same bytes. Two functions vary, and nothing else:

    sample      whom the server asks: `sampling.poisson`, a rotation, or a deployment's secret coins
    release     trains whom it is given, and releases noisy sums: `releases/float_sums.py` (a simulation's seeded float
                noise), `releases/secure_sums.py` (the integer protocol in this process), `releases/charged.py` (either
                of them, charged to a ledger), `flower/server/flower_release.py` (a deployment)

`tests/training/reference.py` is the same round in plain loops, and one suite runs against both.

Guarantees (tests of the same name):
  off_switches_are_fedavg       no noise, no clip, everything kept, one group: FedAvg.
  fast_equals_reference         for every method.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan
from gdpfed.training import mechanism
from gdpfed.training.adaptive_step import Step, next_step
from gdpfed.training.aggregate import averaged, combine
from gdpfed.training.sparsify import keep_largest

__all__ = [
    "IntArray",
    "Release",
    "Released",
    "RoundRecord",
    "Sample",
    "TrainingState",
    "Updates",
    "cohort_sizes",
    "initial_state",
    "run_round",
    "sparsified",
]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingState:
    """All that one round hands to the next: the model, how often each client took part, and if the plan has them, the
    average of all models so far (float64), and what a step that adapts goes by: the start and the last step. While the
    server searches for its step, there is no average."""

    round_number: int
    parameters: Tensor
    participations: IntArray
    average: Tensor | None = None
    start: Tensor | None = None
    step: Step | None = None

    @property
    def model(self) -> Tensor:
        """What is evaluated and kept: the averaged model where there is one. Clients train from ``parameters``."""
        return self.parameters if self.average is None else self.average.float()


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What a round tells: the cohort by group (those asked; of a deployment, as planned), and how updates fared.

    ``dropped`` updates were not finite and count as zero. ``clipped`` and ``dropped`` are None where nobody may know:
    in a deployment, and in a rotation, where they would tell how many coins said yes. In a normalised plan nobody is
    ``clipped``: all updates have one length.
    Of secure sums: so many clients ``vanished`` (in all attempts).
    """

    round_number: int
    cohort: tuple[int, ...]
    clipped: int | None
    dropped: int | None
    update_norm: float
    vanished: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Released:
    """What left the sums of a round, noise included: one tensor if the plan is pooled, else one for each group.

    ``clients`` took part and are counted; a deployment counts them in its ledger only, and has none here.
    ``noise_excess``: the std of the noise over that planned, where sums have more because some of it might be lost.
    """

    sums: list[Tensor]
    clients: IntArray
    cohort: tuple[int, ...]
    clipped: int | None = None
    dropped: int | None = None
    vanished: int = 0
    noise_excess: float = 1.0


# Who takes part, in increasing order.
Sample = Callable[[TrainingState], IntArray]
# Trains these clients, and releases noisy sums.
Release = Callable[[TrainingState, IntArray], Released]
# Trains these clients from the state's parameters: chunks of (clients, their updates), in order. Who is in no chunk
# sends zero.
Updates = Callable[[TrainingState, IntArray], Iterator[tuple[IntArray, Tensor]]]


def initial_state(parameters: Tensor, num_clients: int) -> TrainingState:
    """Before the first round."""
    return TrainingState(
        round_number=0, parameters=parameters.clone(), participations=np.zeros(num_clients, dtype=np.int64)
    )


def run_round(
    state: TrainingState, *, plan: Plan, sample: Sample, release: Release, layer_sizes: list[int]
) -> tuple[TrainingState, RoundRecord]:
    """One round; ``layer_sizes`` are the lengths of the model's parameter tensors."""
    if state.round_number >= plan.num_rounds:
        raise InputError(f"the plan has {plan.num_rounds} rounds, all of which were run: make a plan with more")
    released = release(state, sample(state))
    update, start, step = combine(plan, sparsified(plan, released.sums), layer_sizes), None, None
    if plan.adaptive_step:
        start = _start(state)
        step, update = next_step(
            plan,
            update,
            parameters=state.parameters,
            start=start,
            average=state.average,
            step=state.step,
            round_number=state.round_number,
            noise_excess=released.noise_excess,
        )
    parameters = (state.parameters.double() + update).float()
    participations = state.participations.copy()
    participations[released.clients] += 1
    following = TrainingState(
        round_number=state.round_number + 1,
        parameters=parameters,
        participations=participations,
        average=_averaged(plan, state, parameters, step),
        start=start,
        step=step,
    )
    record = RoundRecord(
        round_number=state.round_number,
        cohort=released.cohort,
        clipped=released.clipped,
        dropped=released.dropped,
        update_norm=float(mechanism.norms(update.unsqueeze(0))[0]),
        vanished=released.vanished,
    )
    return following, record


def _start(state: TrainingState) -> Tensor:
    """The parameters before the first round."""
    if state.start is not None:
        return state.start
    if state.round_number:
        raise InputError(
            "expected the model of the start in the checkpoint, got none: it is damaged, or of an earlier version of "
            "gdpfed; start the run again in a new folder"
        )
    return state.parameters


def _averaged(plan: Plan, state: TrainingState, parameters: Tensor, step: Step | None) -> Tensor | None:
    """The average after this round; none while a step is searched for."""
    if step is None:
        return averaged(plan, state.average, parameters, num_before=state.round_number)
    if step.found_in is None:
        return None
    return averaged(plan, state.average, parameters, num_before=state.round_number - step.found_in)


def sparsified(plan: Plan, noisy: list[Tensor]) -> list[Tensor]:
    """Top-k of each group's noisy sum; a pooled sum is left as it is."""
    if plan.release == "pooled":
        return noisy
    return [
        keep_largest(total, num_kept=max(1, round(group.keep_fraction * len(total))))
        for group, total in zip(plan.groups, noisy, strict=True)
    ]


def cohort_sizes(plan: Plan, assignment: IntArray, clients: IntArray) -> tuple[int, ...]:
    """How many of these clients each group has."""
    return tuple(int(count) for count in np.bincount(assignment[clients], minlength=len(plan.groups)))
