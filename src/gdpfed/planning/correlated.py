"""Noise that takes itself back: correlated over as many rounds as lie between two asks of a client.

Place: beside the plan, of a rotation with `bands`. The released sums are X + C^-1 Z in place of X + Z, one row for a
round: C is lower triangular, with `bands` equal diagonals, and Z is the independent noise of the plan. What the noise
of one round adds, the next rounds partly take away again, so that less of it is left in the model, which is the sum
of all rounds.

What it costs: nothing. To know X + C^-1 Z is to know C X + Z. There a client that trains in round t moves rows t to
t + bands - 1, by its update times a column of C, whose length is at most 1. Its asks are at least `bands` rounds apart
(`rotation.py`), so no row has two of them: each ask is one Gaussian release of sensitivity 1, with its own coin, as
without correlation. (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; the diagonals are those of
the square root of the matrix that adds up rounds, cut off after `bands` and brought to length 1.)

Guarantees (tests of the same name):
  columns_are_no_longer_than_one       for every number of rounds and bands.
  no_two_asks_share_a_row              columns of one client's asks have no row in common.
  less_noise_is_left                   in the sum of all rounds, and on average in the sums of the first ones.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["diagonals", "noise_factors"]

FloatArray = NDArray[np.float64]


def diagonals(bands: int) -> FloatArray:
    """The values of C below each other, from its main diagonal on: positive, falling, of length 1."""
    values = np.array([math.comb(2 * step, step) / 4**step for step in range(bands)])
    return values / math.sqrt(math.fsum(values**2))


def noise_factors(bands: int, round_number: int) -> FloatArray:
    """How much of the independent noise of rounds 0 to ``round_number`` is in that round's: a row of C^-1."""
    # All diagonals of C^-1 are constant, as those of C: its first column says all.
    factors = np.zeros(round_number + 1)
    below = diagonals(bands)
    for row in range(round_number + 1):
        factors[row] = row == 0
        for step in range(1, min(row, bands - 1) + 1):
            factors[row] -= below[step] * factors[row - step]
        factors[row] /= below[0]
    return factors[::-1].copy()
