"""Bound every update, draw the noise: what the accountant assumes, done.

Place: after local training, before anything is released. Float64 throughout. This is the simulator's mechanism: seeded
float noise, fast and reproducible, and stamped as a simulation; the integer mechanism for deployments is in
`secure/encoding.py` and `secure/client.py`.

Guarantees (tests of the same name):
  clipped_norm_is_bounded     no update has a norm above the clip norm, not by one part in 1e12.
  short_updates_are_untouched to the last bit; in a normalised plan they are as long as all others.
  non_finite_becomes_zero     NaN, infinity or a norm beyond float64 makes an update zero; nobody is told.
  norms_are_each_rows_own     the same bits whoever else is in the matrix, and on any number of threads.
  noise_has_the_planned_std   on every coordinate of the sum.
"""

import math

import numpy as np
import torch
from torch import Tensor

from gdpfed import streams
from gdpfed.planning.correlated import noise_factors
from gdpfed.planning.plan import SHORTEST

__all__ = ["clip", "noise", "norms"]

# Rounding in the norm and the product must not leave a norm above the bound.
_SAFETY = 1 - 1e-14


def norms(updates: Tensor) -> Tensor:
    """The L2 norm of each row of (clients, params) float64; NaN or infinity where it is not a number.

    By numpy, whose pairwise sums are right to the last bits for any number of parameters, on any number of threads.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(np.sqrt(np.square(np.ascontiguousarray(updates.numpy())).sum(axis=1)))


def clip(updates: Tensor, *, clip_norm: float, is_normalised: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of (clients, params) with norms of at most ``clip_norm``, non-finite ones as zero; their norms before.
    Normalised ones have that norm, but for rows so short that their norm is no exact number: they stay as they are."""
    lengths = norms(updates)
    factors = torch.ones_like(lengths)
    if math.isfinite(clip_norm):
        from_norm = min(SHORTEST, clip_norm) if is_normalised else clip_norm
        factors = torch.where(lengths > from_norm, clip_norm * _SAFETY / lengths, factors)
    bounded = updates * factors.unsqueeze(1)
    bounded[~torch.isfinite(lengths)] = 0
    return bounded, lengths


def noise(num_params: int, *, std: float, seed: int, round_number: int, place: int, bands: int | None = None) -> Tensor:
    """Gaussian noise for the sum of group ``place`` in this round; with ``bands``, correlated with earlier rounds'."""

    def independent(of_round: int) -> Tensor:
        drawn = streams.generator(seed, "noise", round_number=of_round, client=place).standard_normal(num_params)
        return torch.from_numpy(drawn) * std

    if bands is None:
        return independent(round_number)
    total = torch.zeros(num_params, dtype=torch.float64)
    # All rounds are drawn again: a run that is resumed has the same.
    for of_round, factor in enumerate(noise_factors(bands, round_number)):
        total += float(factor) * independent(of_round)
    return total
