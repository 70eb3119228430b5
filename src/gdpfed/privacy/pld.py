"""The privacy loss distribution of the Poisson-subsampled Gaussian, built fast.

Place: below the accountant. dp-accounting does the accounting: "connect the dots" discretisation, composition,
truncation of tails, epsilon and delta. What stands here are three steps of it, written again by arrays because they
took nine tenths of the time:

  - the single-round curve delta(epsilon), a Python loop over grid points there;
  - how far a composed distribution reaches (Chernoff bounds at 40 orders), 40 general log-sum-exps there;
  - the curve of a person with several clients in one sum, a mixture of more Gaussians, whose losses have no inverse in
    closed form: a bisection by recursion there.

The curve of one client has a closed form, because one round is a mixture of two Gaussians:

    remove:  delta(e) = q * G(log(1 + (exp(e) - 1) / q))                  for e > log(1 - q),  else 1 - exp(e)
    add:     delta(e) = a * G(e + log(q) - log(a)),  a = 1 - exp(e)(1 - q)  while a > 0,  else 0
    G(t) = Phi(1/(2s) - t s) - exp(t) Phi(-1/(2s) - t s)                  the Gaussian without sampling, s its noise
    multiplier

Guarantees (tests of the same name):
  curve_equals_dp_accounting      both curves equal dp-accounting's own to 1e-12 absolute.
  epsilon_equals_dp_accounting    so does the composed epsilon, to 1e-7 relative, at the same grid.
  coarser_grid_is_never_optimistic  a wider grid gives a larger epsilon, never a smaller one.
  composition_equals_dp_accounting  the same numbers, bit for bit, from the same single round.
  mixture_equals_dp_accounting      so has the mixture's distribution.
"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss
from numpy.typing import NDArray
from scipy import fft, special

__all__ = ["Direction", "composed_distribution", "composed_mixture", "composed_remove", "round_curve"]

# Mass of the noise beyond these points counts as an unbounded loss, as in dp-accounting's default.
_LOG_TRUNCATED_MASS = -50.0
# A grid is widened rather than made longer than this: pessimistic, hence still true, and bounded in memory.
_MAX_GRID_POINTS = 1 << 21
_LARGEST_EXPONENT = 700.0
# As in dp-accounting: what of a composed distribution may be cut off and counted as an unbounded loss, and the orders,
# over the length of the grid, of the bounds that say where.
_CUT_OFF_MASS = 1e-15
_CHERNOFF_ORDERS = 20
# Distributions of at most so many points are dictionaries there.
_MAX_SPARSE = 1000
# A curve that rises by more than its own rounding is no curve: dp-accounting refuses it.
_RISE_BY_ROUNDING = 1e-12

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
    return _connected(interval, first, last, deltas)


def _connected(interval: float, first: int, last: int, deltas: FloatArray) -> pld_pmf.PLDPmf:
    """What dp-accounting's `create_pmf_pessimistic_connect_dots_fixed_gap` returns: the same formula, but an array
    stays one, where that goes through a dictionary."""
    steps = np.diff(np.minimum.accumulate(deltas))
    if len(deltas) <= _MAX_SPARSE or np.any(np.diff(deltas) > _RISE_BY_ROUNDING):
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)
    width = math.expm1(interval)
    masses = np.concatenate(
        [
            [1 - deltas[0] + steps[0] / width],
            (steps[1:] - steps[:-1] * math.exp(interval)) / width,
            [steps[-1] / math.expm1(-interval)],
        ]
    )
    return pld_pmf.DensePLDPmf(interval, first, np.maximum(0.0, masses), float(deltas.min()), True)


def composed_remove(
    *, noise_multiplier: float, sampling_rate: float, num_rounds: int, grid_interval: float
) -> pld_pmf.PLDPmf:
    """The composed loss when the client is removed: nearly always the larger of the two, so a search may start from
    it."""
    removed = Direction(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, removed=True)
    return _self_composed(_round_losses(removed, grid_interval), num_rounds)


@functools.lru_cache(maxsize=4)
def composed_distribution(
    *, noise_multiplier: float, sampling_rate: float, num_rounds: int, grid_interval: float
) -> PrivacyLossDistribution:
    """The privacy loss distribution of ``num_rounds`` rounds, both directions, ready for epsilon and delta.

    The last few are kept, since a search asks for delta and its caller for epsilon of the same one.
    """
    removed = Direction(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, removed=True)
    rounds = (_round_losses(one, grid_interval) for one in (removed, replace(removed, removed=False)))
    return PrivacyLossDistribution(*(_self_composed(losses, num_rounds) for losses in rounds))


def _self_composed(losses: pld_pmf.PLDPmf, num_rounds: int) -> pld_pmf.PLDPmf:
    """What ``losses.self_compose(num_rounds)`` returns."""
    if isinstance(losses, pld_pmf.SparsePLDPmf):
        if num_rounds == 1 or losses.size**num_rounds <= _MAX_SPARSE:
            return losses.self_compose(num_rounds)
        losses = losses.to_dense_pmf()
    masses = losses._probs
    first, last = _reach(masses, num_rounds)
    length = last - first + 1
    fast_length = fft.next_fast_len(max(length, len(masses)))
    composed = np.real(fft.ifft(fft.fft(masses, fast_length) ** num_rounds))
    return pld_pmf.DensePLDPmf(
        losses._discretization,
        losses._lower_loss * num_rounds + first,
        np.roll(composed, -first)[:length],
        _CUT_OFF_MASS - math.expm1(num_rounds * math.log1p(-losses._infinity_mass)),
        losses._pessimistic_estimate,
    )


def _reach(masses: FloatArray, num_rounds: int) -> tuple[int, int]:
    """Between which sums of grid points all but the cut-off mass of ``num_rounds`` rounds lies: Chernoff's bounds."""
    size = len(masses)
    first, last = 0, (size - 1) * num_rounds
    room = math.log(2 / _CUT_OFF_MASS)
    for sign in (-1, 1):
        # Exponents stay within 20, so plain sums of powers neither overflow nor cancel.
        growth = np.exp(np.arange(size) * (sign / size))
        weighted = masses
        for number in range(1, _CHERNOFF_ORDERS + 1):
            weighted = weighted * growth
            total = float(weighted.sum())
            if not total > 0:
                continue
            bound = (num_rounds * math.log(total) + room) / (sign * number / size)
            if sign > 0:
                last = min(last, math.ceil(bound))
            else:
                first = max(first, math.floor(bound))
    return first, last


class _MixtureLoss(MixtureGaussianPrivacyLoss):  # type: ignore[misc]  # dp-accounting has no types
    """dp-accounting's, with the bisection for all losses at once in place of one by recursion: the same halves."""

    def _inverse_privacy_losses_with_range(
        self, privacy_losses: FloatArray, bounds: tuple[float, float], precision: float = 1e-6
    ) -> FloatArray:
        low, high = (np.full(len(privacy_losses), bound) for bound in bounds)
        slopes = self.sensitivities / self._variance
        sign = 1.0 if self.adjacency_type == AdjacencyType.ADD else -1.0
        constants = self._precompute_privacy_loss_constants
        while (searched := high - low > precision).any():
            # Most losses share their middle with others at first, and at last none does.
            middle, shared_by = np.unique((low[searched] + high[searched]) / 2, return_inverse=True)
            summed = np.full(len(middle), -np.inf)
            for constant, slope in zip(constants, slopes, strict=True):
                summed = np.logaddexp(summed, constant + sign * slope * middle)
            is_higher = privacy_losses[searched] >= (-sign * summed)[shared_by]
            low[searched] = np.where(is_higher, low[searched], middle[shared_by])
            high[searched] = np.where(is_higher, middle[shared_by], high[searched])
        return np.floor(high / precision) * precision


@functools.lru_cache(maxsize=64)
def composed_mixture(
    *, sensitivities: tuple[float, ...], probabilities: tuple[float, ...], num_rounds: int, grid_interval: float
) -> PrivacyLossDistribution:
    """The privacy loss distribution of ``num_rounds`` sums that one person's clients shift by ``sensitivities``, in
    noise stds, with these probabilities.

    Kept, since people are spread over groups in many ways that share what happens in one group.
    """

    def losses(adjacency: AdjacencyType) -> pld_pmf.PLDPmf:
        """One round's distribution, as dp-accounting's `from_mixture_gaussian_mechanism` builds it."""
        loss = _MixtureLoss(
            1.0, sensitivities, probabilities, log_mass_truncation_bound=_LOG_TRUNCATED_MASS, adjacency_type=adjacency
        )
        bounds = loss.connect_dots_bounds()
        first, last = math.floor(bounds.epsilon_lower / grid_interval), math.ceil(bounds.epsilon_upper / grid_interval)
        deltas = loss.get_delta_for_epsilon(np.arange(first, last + 1) * grid_interval)
        return _connected(grid_interval, first, last, deltas)

    directions = (AdjacencyType.REMOVE, AdjacencyType.ADD)
    return PrivacyLossDistribution(*(_self_composed(losses(one), num_rounds) for one in directions))
