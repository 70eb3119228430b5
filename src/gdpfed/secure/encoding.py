"""Updates as whole numbers: clipped, scaled, cut off toward zero, with a norm that is bounded exactly.

Place: between local training and the noise share, and again after unmasking. All clients of a sum share one grid, whose
step (`unit`) is a power of two, so that scaling to it and back is exact. A clip norm is between 2^19 and 2^20 steps
long, or fewer where the cohort is so large that the sum would leave 32 bits; under 2^12 the plan is refused. In a
pooled sum the longest clip norm times scale decides, and every group has its own bound.

Guarantees (tests of the same name):
  integer_norm_never_exceeds_the_bound   computed without rounding; cutting off only shortens.
  bad_values_become_zero                 NaN, infinities, 1e200, another length or type; nothing raises.
  sum_cannot_overflow                    the largest cohort, all alike, and 16 std of noise stay within 32 bits.
  noise_on_the_grid_is_the_plans         never less than the plan's std, exactly, in every group.
  decoding_is_within_the_grid            an encoded update is less than a step from the clipped one, everywhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError
from gdpfed.planning.plan import SHORTEST, Group, Plan
from gdpfed.planning.rotation import largest_roster, smallest_roster
from gdpfed.secure.noise_shares import ROUNDING_VARIANCE, Tolerance, noise_share, released_variance
from gdpfed.secure.session import LARGEST_COHORT

__all__ = [
    "ClientEncoding",
    "PlannedSum",
    "decode",
    "encode",
    "largest_cohort",
    "noise_excess",
    "planned_sums",
]

_MOST_BITS, _FEWEST_BITS = 20, 12
_HALF_MODULUS = 1 << 31
_NOISE_STDS = 16
# A cohort beyond its largest size is drawn once in 1e18 rounds.
_COHORT_TAIL = 1e-18
# Rounding in the norm and the products must not leave a norm above the bound.
_SAFETY = 1 - 1e-14


@dataclass(frozen=True, kw_only=True)
class ClientEncoding:
    """How the clients of one group write their updates."""

    clip_norm: float
    scale: float
    unit: float
    norm_bound: int
    num_params: int
    is_normalised: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannedSum:
    """One secure sum of a round: a group's, or that of all groups if the plan is pooled.

    With fewer than ``smallest_cohort`` clients it is given up: in a rotation, where the noise is sized for rosters that
    are nearly constant.
    """

    place: int
    groups: tuple[int, ...]
    num_params: int
    unit: float
    noise_variance: int
    released_variance: int
    largest_cohort: int
    encodings: tuple[ClientEncoding, ...]
    smallest_cohort: int = 1

    def encoding(self, group: int) -> ClientEncoding:
        """That of a group, by its index in the plan."""
        return self.encodings[self.groups.index(group)]


def noise_excess(sums: Sequence[PlannedSum]) -> float:
    """The std of the noise in what is released over that planned, of the sum where it is largest: no secret, since it
    depends on the plan and what is tolerated alone."""
    return math.sqrt(max(each.released_variance / each.noise_variance for each in sums))


def largest_cohort(groups: list[Group]) -> int:
    """More of these groups' clients than that are sampled once in 1e18 rounds."""
    mean = math.fsum(group.expected_cohort for group in groups)
    variance = math.fsum(group.expected_cohort * (1 - group.sampling_rate) for group in groups)
    # Bernstein's inequality: quantile functions lose their digits so far out.
    logarithm = -math.log(_COHORT_TAIL)
    above = logarithm / 3 + math.sqrt(logarithm**2 / 9 + 2 * variance * logarithm)
    return min(sum(group.num_clients for group in groups), math.ceil(mean + above))


def planned_sums(plan: Plan, *, num_params: int, tolerance: Tolerance) -> tuple[PlannedSum, ...]:
    """The secure sums of a round; refuses a plan that does not fit into 32 bits."""
    if not plan.is_private:
        raise InputError(f"expected a plan with clip norm and noise for a secure sum, got method {plan.method!r}")
    if plan.bands is not None:
        raise InputError("expected independent noise in secure sums, got correlated noise: it is for simulations")
    if num_params < 1:
        raise InputError(f"expected num_params >= 1, got num_params={num_params}")
    every = range(len(plan.groups))
    members = [tuple(every)] if plan.release == "pooled" else [(group_index,) for group_index in every]
    return tuple(
        _planned(plan, index, groups, num_params=num_params, tolerance=tolerance)
        for index, groups in enumerate(members)
    )


def _planned(plan: Plan, index: int, members: tuple[int, ...], *, num_params: int, tolerance: Tolerance) -> PlannedSum:
    groups = [plan.groups[member] for member in members]
    reaches = [Fraction(group.clip_norm) * Fraction(group.scale) for group in groups]
    # Of a pooled plan's groups, whose stds agree to 1e-9, the largest.
    std = max(Fraction(group.noise_multiplier) * reach for group, reach in zip(groups, reaches, strict=True))
    cohort = largest_roster(plan, groups) if plan.is_rotation else largest_cohort(groups)
    smallest = smallest_roster(plan, groups) if plan.is_rotation else 1
    if cohort > LARGEST_COHORT:
        most = f"{LARGEST_COHORT} clients, which a roster can list"
        raise InputError(f"expected cohorts of at most {most}, got up to {cohort}: lower the participation")
    for bits in range(_MOST_BITS, _FEWEST_BITS - 1, -1):
        unit = _power_of_two(max(reaches) / 2**bits)
        bounds = [math.floor(reach / unit) for reach in reaches]
        noise_variance = math.ceil((std / unit) ** 2) + ROUNDING_VARIANCE
        released = released_variance(
            total_variance=noise_variance, largest_cohort=cohort, tolerance=tolerance, smallest_cohort=smallest
        )
        if cohort * max(bounds) + _NOISE_STDS * math.sqrt(released) < _HALF_MODULUS:
            break
    else:
        raise InputError(
            f"expected sums that fit into 32 bits on a grid of at least 2^{_FEWEST_BITS} steps, got cohorts of up to "
            f"{cohort} clients at noise multipliers up to {max(group.noise_multiplier for group in groups):.3g}: lower "
            f"the participation"
        )
    # The largest cohort has the smallest shares: refused now, not when it is drawn.
    noise_share(total_variance=noise_variance, cohort=cohort, tolerance=tolerance, num_params=num_params)
    return PlannedSum(
        place=index,
        groups=members,
        num_params=num_params,
        unit=float(unit),
        noise_variance=noise_variance,
        released_variance=released,
        largest_cohort=cohort,
        smallest_cohort=smallest,
        encodings=tuple(
            ClientEncoding(
                clip_norm=group.clip_norm,
                scale=group.scale,
                unit=float(unit),
                norm_bound=bound,
                num_params=num_params,
                is_normalised=plan.normalised,
            )
            for group, bound in zip(groups, bounds, strict=True)
        ),
    )


def _power_of_two(least: Fraction) -> Fraction:
    """The smallest power of two that is at least so much."""
    exponent = math.frexp(float(least))[1]
    while Fraction(2) ** (exponent - 1) >= least:
        exponent -= 1
    return Fraction(2) ** exponent


def encode(update: Any, encoding: ClientEncoding) -> NDArray[np.int64]:
    """The update, clipped, on the grid; whatever cannot be used is zero, and nobody is told."""
    nothing = np.zeros(encoding.num_params, dtype=np.int64)
    try:
        given = np.asarray(update)
    except (TypeError, ValueError, OverflowError):
        return nothing
    if given.shape != (encoding.num_params,) or given.dtype.kind not in "fiub":
        return nothing
    with np.errstate(all="ignore"):
        values = given.astype(np.float64)
        norm = float(np.sqrt(np.square(values).sum()))
        if not math.isfinite(norm):
            return nothing
        from_norm = min(SHORTEST, encoding.clip_norm) if encoding.is_normalised else encoding.clip_norm
        factor = encoding.clip_norm * _SAFETY / norm if norm > from_norm else 1.0
        scaled = np.trunc(values * factor * encoding.scale / encoding.unit)
        # Squares that underflow leave a norm of zero, and the whole numbers' square must fit into 64 bits.
        if not float(np.square(scaled).sum()) <= 4.0 * encoding.norm_bound**2:
            return nothing
    return _bounded(scaled.astype(np.int64), encoding.norm_bound)


def _bounded(steps: NDArray[np.int64], norm_bound: int) -> NDArray[np.int64]:
    """Shortened where rounding left the norm above the bound; exact in whole numbers."""
    for _ in range(3):
        square = int(steps @ steps)
        if square <= norm_bound**2:
            return steps
        steps = np.trunc(steps * (norm_bound / math.sqrt(square) * (1 - 1e-9))).astype(np.int64)
    return np.zeros_like(steps)


def decode(total: NDArray[np.uint32], *, unit: float) -> NDArray[np.float64]:
    """A sum mod 2^32, centred, in the updates' unit."""
    return np.multiply(total.view(np.int32), unit, dtype=np.float64)
