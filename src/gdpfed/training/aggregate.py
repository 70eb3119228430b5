"""From noisy sums to the model's update: the only place where methods differ in more than their plan's numbers.

Place: after noise and Top-k. All of it is post-processing of released sums.

Guarantees (tests of the same name):
  weighted_sum_is_the_papers     sum_m omega_m y_m.
  projection_is_rank_one         the strict groups' part becomes parallel to the lax groups', layer by layer; nothing
                                 else changes.
  average_forgets_at_its_rate    the averaged model is sum_s averaging^(t-s) model_s over the sum of these weights.
  a_lost_average_is_refused      after the first round there is one, or an error: it is not begun anew.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gdpfed.errors import InputError
from gdpfed.planning.plan import Plan

__all__ = ["averaged", "combine", "project"]


def combine(plan: Plan, sums: Sequence[Tensor], layer_sizes: Sequence[int]) -> Tensor:
    """The update of the model (float64): one released sum if the plan is pooled, else one for each group."""
    step = plan.server_learning_rate
    if plan.release == "pooled":
        (total,) = sums
        return step * plan.groups[0].weight * total
    weighted = [group.weight * released for group, released in zip(plan.groups, sums, strict=True)]
    if not any(group.projected for group in plan.groups):
        return step * torch.stack(weighted).sum(0)
    strict = torch.stack([part for group, part in zip(plan.groups, weighted, strict=True) if group.projected]).sum(0)
    lax = torch.stack([part for group, part in zip(plan.groups, weighted, strict=True) if not group.projected]).sum(0)
    return step * (lax + project(strict, lax, layer_sizes))


def project(strict: Tensor, lax: Tensor, layer_sizes: Sequence[int]) -> Tensor:
    """PFA: in each layer, the part of ``strict`` along ``lax``: p <p, z> / ||p||^2; zero where ``lax`` is."""
    projected = []
    sizes = list(layer_sizes)
    for part, direction in zip(torch.split(strict, sizes), torch.split(lax, sizes), strict=True):
        length = _dot(direction, direction)
        projected.append(direction * (_dot(part, direction) / length) if length > 0 else torch.zeros_like(direction))
    return torch.cat(projected)


def averaged(plan: Plan, average: Tensor | None, parameters: Tensor, *, num_before: int) -> Tensor | None:
    """The moving average of these parameters and of ``num_before`` models, whose ``average`` is given, float64; None
    where the plan has none.

    The start is not in it, so the weights are divided by their sum, 1 - averaging^(num_before + 1).
    """
    if not plan.averaging:
        return None
    if average is None:
        if num_before:
            raise InputError(
                f"expected the average of the models of {num_before} rounds in the checkpoint, got none: start the "
                f"run again in a new folder, or restore the checkpoint"
            )
        return parameters.double()
    share = (1 - plan.averaging) / (1 - plan.averaging ** (num_before + 1))
    return average + share * (parameters.double() - average)


def _dot(left: Tensor, right: Tensor) -> float:
    """By numpy, whose sum does not depend on the number of threads that PyTorch happens to have."""
    return float(np.multiply(left.numpy(), right.numpy()).sum())
