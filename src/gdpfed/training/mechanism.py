"""Bound every update, add the noise: what the accountant assumes, done.

Place: after local training, before anything is released. Float64 throughout. This is the simulator's mechanism: seeded float noise, fast and
reproducible, and stamped as a simulation; the integer mechanism for deployments is another module's.

Guarantees (tests of the same name):
  clipped_norm_is_bounded     no update has a norm above the clip norm, not by one part in 1e12.
  short_updates_are_untouched
  non_finite_becomes_zero     NaN or infinity anywhere in an update makes it zero; nobody is told.
  noise_has_the_planned_std   on every coordinate of the sum.
"""

import math

import torch
from torch import Tensor

from gdpfed import streams

__all__ = ["clip", "noise"]

# Rounding in the norm and the product must not leave a norm above the bound.
_SAFETY = 1 - 1e-14


def clip(updates: Tensor, *, clip_norm: float) -> Tensor:
    """(clients, params) float64 -> the same, each row scaled to a norm of at most ``clip_norm``; a non-finite row becomes zero."""
    norms = torch.linalg.vector_norm(updates, dim=1)
    finite = torch.isfinite(norms)
    factors = torch.ones_like(norms)
    if math.isfinite(clip_norm):
        factors = torch.where(norms > clip_norm, clip_norm * _SAFETY / norms, factors)
    bounded = updates * torch.where(finite, factors, torch.zeros_like(factors)).unsqueeze(1)
    return torch.where(finite.unsqueeze(1), bounded, torch.zeros_like(bounded))


def noise(num_params: int, *, std: float, seed: int, round_number: int, place: int) -> Tensor:
    """Gaussian noise for the sum of group ``place`` in this round."""
    drawn = streams.generator(seed, "noise", round_number=round_number, client=place).standard_normal(num_params)
    return torch.from_numpy(drawn) * std
