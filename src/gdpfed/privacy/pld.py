"""The privacy loss distribution of the Poisson-subsampled Gaussian, built fast.

Place: below the accountant. dp-accounting does the accounting: "connect the dots" discretisation, composition,
truncation of tails, epsilon and delta. What stands here is one step of it, written again because it takes three
quarters of the time: dp-accounting evaluates the single-round curve delta(epsilon) by a Python loop over grid points,
we evaluate the same curve by arrays. It has a closed form, because one round is a mixture of two Gaussians:

    remove:  delta(e) = q * G(log(1 + (exp(e) - 1) / q))                  for e > log(1 - q),  else 1 - exp(e)
    add:     delta(e) = a * G(e + log(q) - log(a)),  a = 1 - exp(e)(1 - q)  while a > 0,  else 0
    G(t) = Phi(1/(2s) - t s) - exp(t) Phi(-1/(2s) - t s)                  the Gaussian without sampling, s its noise
    multiplier

Guarantees (tests of the same name):
  curve_equals_dp_accounting      both curves equal dp-accounting's own to 1e-12 absolute.
  epsilon_equals_dp_accounting    so does the composed epsilon, to 1e-7 relative, at the same grid.
  coarser_grid_is_never_optimistic  a wider grid gives a larger epsilon, never a smaller one.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy import special

__all__ = ["Direction", "composed_distribution", "composed_remove", "round_curve"]

# Mass of the noise beyond these points counts as an unbounded loss, as in dp-accounting's default.
_LOG_TRUNCATED_MASS = -50.0
# A grid is widened rather than made longer than this: pessimistic, hence still true, and bounded in memory.
_MAX_GRID_POINTS = 1 << 21
_LARGEST_EXPONENT = 700.0

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Direction:
    """One round of the mechanism, and whether the one client is ``removed`` or added."""

    noise_multiplier: float
    sampling_rate: float
    removed: bool


def _gaussian_delta(threshold: FloatArray, noise_multiplier: float) -> FloatArray:
    """G(t): delta of the Gaussian mechanism without sampling at epsilon = ``threshold`` (any sign)."""
    half = 0.5 / noise_multiplier
    above = special.ndtr(half - threshold * noise_multiplier)
    below = np.exp(threshold + special.log_ndtr(-half - threshold * noise_multiplier))
    difference: FloatArray = above - below
    return difference


def round_curve(epsilons: FloatArray, direction: Direction) -> FloatArray:
    """Returns delta(epsilon) of one round, for an array of epsilons of any sign; ``sampling_rate`` below 1."""
    rate = direction.sampling_rate
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if direction.removed:
            # For a large epsilon, or a small rate, the quotient overflows; its log1p is replaced by its own asymptote.
            quotient = np.expm1(epsilons) / rate
            is_exact = (epsilons < _LARGEST_EXPONENT) & (quotient < np.inf)
            threshold = np.where(is_exact, np.log1p(quotient), epsilons - math.log(rate))
            sampled = rate * _gaussian_delta(threshold, direction.noise_multiplier)
            deltas = np.where(epsilons > math.log1p(-rate), sampled, -np.expm1(epsilons))
        else:
            room = -np.expm1(epsilons + math.log1p(-rate))
            sampled = room * _gaussian_delta(epsilons + math.log(rate) - np.log(room), direction.noise_multiplier)
            deltas = np.where(room > 0, sampled, 0.0)
    return np.clip(deltas, 0.0, 1.0)


def _amplified(loss: float, rate: float) -> float:
    """log(1 - q + q exp(loss)), without overflow."""
    if loss < _LARGEST_EXPONENT:
        return math.log1p(rate * math.expm1(loss))
    return loss + math.log(rate)


def _round_losses(direction: Direction, grid_interval: float) -> pld_pmf.PLDPmf:
    """One round's privacy loss distribution on a grid, pessimistic (connect the dots)."""
    noise = direction.noise_multiplier
    tail = -noise * float(special.ndtri_exp(_LOG_TRUNCATED_MASS + math.log(0.5)))
    largest = (2 * tail + 1) / (2 * noise**2)
    low, high = _amplified(-largest, direction.sampling_rate), _amplified(largest, direction.sampling_rate)
    if not direction.removed:
        low, high = -high, -low
    interval = grid_interval * 2.0 ** math.ceil(max(0.0, math.log2((high - low) / grid_interval / _MAX_GRID_POINTS)))
    first, last = math.floor(low / interval), math.ceil(high / interval)
    deltas = round_curve(np.arange(first, last + 1, dtype=np.float64) * interval, direction)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)


def composed_remove(
    *, noise_multiplier: float, sampling_rate: float, num_rounds: int, grid_interval: float
) -> pld_pmf.PLDPmf:
    """The composed loss when the client is removed: nearly always the larger of the two, so a search may start from
    it."""
    direction = Direction(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, removed=True)
    return _round_losses(direction, grid_interval).self_compose(num_rounds)


@functools.lru_cache(maxsize=4)
def composed_distribution(
    *, noise_multiplier: float, sampling_rate: float, num_rounds: int, grid_interval: float
) -> PrivacyLossDistribution:
    """The privacy loss distribution of ``num_rounds`` rounds, both directions, ready for epsilon and delta.

    The last few are kept, since a search asks for delta and its caller for epsilon of the same one.
    """
    removed, added = (
        _round_losses(
            Direction(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, removed=is_removed),
            grid_interval,
        )
        for is_removed in (True, False)
    )
    return PrivacyLossDistribution(removed, added).self_compose(num_rounds)
