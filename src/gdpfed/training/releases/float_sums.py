"""Float sums with seeded float noise: what a simulation releases.

Place: a `Release` of `training/rounds.py`. Train, clip, scale and add up by group; then noise on what leaves.

Guarantees (tests of the same name):
  released_sums_match_the_plan  the noise on the released sums has the planned variance.
"""

import numpy as np
import torch
from torch import Tensor

from gdpfed.planning.plan import Plan
from gdpfed.training import mechanism
from gdpfed.training.rounds import IntArray, Release, Released, TrainingState, Updates, cohort_sizes

__all__ = ["clipped_sums", "float_release", "with_noise"]


def float_release(plan: Plan, assignment: IntArray, updates: Updates, *, seed: int) -> Release:
    """Clipped sums of what ``updates`` trains, and noise from ``seed``."""

    def release(state: TrainingState, clients: IntArray) -> Released:
        sums, clipped, dropped = clipped_sums(state, plan, assignment, clients, updates)
        return Released(
            sums=with_noise(plan, sums, seed=seed, round_number=state.round_number),
            clients=clients,
            cohort=cohort_sizes(plan, assignment, clients),
            clipped=None if plan.is_rotation else clipped,
            dropped=None if plan.is_rotation else dropped,
        )

    return release


def clipped_sums(
    state: TrainingState, plan: Plan, assignment: IntArray, clients: IntArray, updates: Updates
) -> tuple[list[Tensor], int, int]:
    """Each group's sum of clipped, scaled updates, and how many were clipped or zeroed.

    Float64, added one by one in the clients' order: the bits do not depend on the chunks.
    """
    sums = [torch.zeros(len(state.parameters), dtype=torch.float64) for _ in plan.groups]
    clipped = dropped = 0
    for chunk, changes in updates(state, clients):
        groups = assignment[chunk]
        for number in np.unique(groups):
            group = plan.groups[number]
            rows = changes[torch.from_numpy(np.flatnonzero(groups == number))]
            bounded, lengths = mechanism.clip(rows, clip_norm=group.clip_norm)
            dropped += int((~torch.isfinite(lengths)).sum())
            clipped += int((torch.isfinite(lengths) & (lengths > group.clip_norm)).sum())
            for row in bounded:
                sums[number] += row * group.scale
    return sums, clipped, dropped


def with_noise(plan: Plan, sums: list[Tensor], *, seed: int, round_number: int) -> list[Tensor]:
    """What leaves the sums: one tensor if pooled, else one for each group. Without noise the sums themselves."""
    if plan.release == "pooled":
        sums = [torch.stack(sums).sum(0)]
    return [
        total
        + mechanism.noise(
            len(total), std=group.noise_std, seed=seed, round_number=round_number, place=number, bands=plan.bands
        )
        if group.noise_std
        else total
        for number, (group, total) in enumerate(zip(plan.groups[: len(sums)], sums, strict=True))
    ]
