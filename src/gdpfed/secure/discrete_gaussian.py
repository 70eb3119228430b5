"""Discrete Gaussian noise: exact, vectorised, from a cryptographic stream.

Place: a client's share of the noise, added to its encoded update. P(x) is proportional to exp(-x^2 / (2 variance)) over
the whole numbers x; `variance` is the parameter, and the true variance agrees with it to 1e-400 from 100 up.

How: rejection under a staircase. A step of the stairs is 2^m numbers wide, and is chosen with a whole-numbered weight
out of 2^32 that is at least proportional to the largest probability in it; sign and place in the step are random bits;
x is accepted with probability K exp(-x^2 / (2 variance)) / weight. That comparison is the only one with a real number.
It is decided in float64 where the two sides are further apart than float64 can err (2^-40, relative), and otherwise
with as many digits and random bits as it takes. So floats decide nothing that they could get wrong, and the
distribution is exact. Steps beyond 8 std share a weight of 1 and are told apart by coins.

Time: every call draws a number of candidates that follows from the number of samples alone, and treats them all alike.
The exact comparison (3e-10 a candidate, nearly all of them in the tail and rejected) and a second draw for want of
accepted candidates (1e-9 a call) are rare.

Guarantees (tests of the same name):
  exact_probabilities          chi-square against the exact probabilities.
  doubt_changes_nothing        the exact comparison decides as the quick one does, on the same random bits.
  staircase_is_above_the_curve for every step, and for the tail.
  candidates_follow_the_number only the number of samples decides how much is drawn.
"""

import decimal
import functools
import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError
from gdpfed.secure.randomness import Stream

__all__ = ["LARGEST_VARIANCE", "SMALLEST_VARIANCE", "discrete_gaussian"]

SMALLEST_VARIANCE = 64
LARGEST_VARIANCE = 1 << 56
_WEIGHTS = 1 << 32
# float64 decides when the sides differ by more than this, relatively: 256 times what exp, two products and the
# conversion of the exponent can err.
_MARGIN = 2.0**-40
# Samples at a time: what stays in cache.
_BATCH = 1 << 16


@dataclass(frozen=True, eq=False)
class _Staircase:
    """Weights that sum to 2^32, the last one for everything beyond the steps."""

    variance: int
    width_bits: int
    height: int  # K
    weights: tuple[int, ...]
    ends: NDArray[np.uint64]
    factors: NDArray[np.float64]  # K exp(-start^2 / (2 variance)) / weight of each step; 0 for the tail
    acceptance: float


@functools.lru_cache(maxsize=64)
def _staircase(variance: int) -> _Staircase:
    if not SMALLEST_VARIANCE <= variance <= LARGEST_VARIANCE:
        raise InputError(f"expected a variance from {SMALLEST_VARIANCE} to 2^56 grid steps squared, got {variance}")
    std = math.isqrt(variance)
    width_bits = (std // 4).bit_length() - 1
    width = 1 << width_bits
    num_steps = 8 * (std + 1) // width + 1
    with decimal.localcontext(decimal.Context(prec=60)):
        tops = [(Decimal(-((step * width) ** 2)) / (2 * variance)).exp() for step in range(num_steps)]
        height = int((_WEIGHTS - num_steps - 1) / sum(tops))
        # Rounded up, and one more where rounding in the last of 60 digits could matter.
        weights = [int(height * top) + 1 for top in tops]
        weights[0] += _WEIGHTS - 1 - sum(weights)
        factors = [float(height * top / weight) for top, weight in zip(tops, weights, strict=True)]
    return _Staircase(
        variance=variance,
        width_bits=width_bits,
        height=height,
        weights=(*weights, 1),
        ends=np.cumsum(np.array(weights, dtype=np.uint64)),
        factors=np.array([*factors, 0.0]),
        acceptance=math.sqrt(2 * math.pi * variance) * height / (2 * width * _WEIGHTS),
    )


def _candidates(num: int, acceptance: float) -> int:
    """So many that fewer than ``num`` are accepted once in 1e9."""
    return math.ceil(num / acceptance + 6 * math.sqrt(num * (1 - acceptance)) / acceptance + 32)


def discrete_gaussian(num: int, *, variance: int, stream: Stream) -> NDArray[np.int64]:
    """``num`` independent samples."""
    stairs = _staircase(variance)
    samples = np.empty(num, dtype=np.int64)
    filled = 0
    while filled < num:
        wanted = min(_BATCH, num - filled)
        accepted = _accepted(stairs, _candidates(wanted, stairs.acceptance), stream)[:wanted]
        samples[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return samples


def _accepted(stairs: _Staircase, num: int, stream: Stream) -> NDArray[np.int64]:
    words = stream.words(2 * num)
    candidates, tests = words[:num], words[num:]
    steps = np.searchsorted(stairs.ends, candidates >> np.uint64(32), side="right")
    low = candidates.astype(np.uint32).astype(np.int64)
    offsets = low & ((1 << stairs.width_bits) - 1)
    negative = low >> 31 == 1
    values = (steps << stairs.width_bits) + offsets
    # x^2 less the square of the step's start, exactly.
    squares = offsets * (2 * values - offsets)
    chances = np.exp(squares * (-0.5 / stairs.variance))
    chances *= stairs.factors[steps]
    uniforms = (tests >> np.uint64(11)).astype(np.float64) * 2.0**-53
    keep = uniforms < chances
    doubtful = np.abs(uniforms - chances) <= _MARGIN * chances + 2.0**-52
    doubtful |= steps == len(stairs.ends)
    for index in np.flatnonzero(doubtful):
        values[index], keep[index] = _exactly(stairs, int(steps[index]), int(offsets[index]), int(tests[index]), stream)
    keep &= ~(negative & (values == 0))
    signed: NDArray[np.int64] = np.where(negative, -values, values)[keep]
    return signed


def _exactly(stairs: _Staircase, step: int, offset: int, bits: int, stream: Stream) -> tuple[int, bool]:
    """The value of a candidate, and whether it is accepted: with as many digits and bits as that takes.

    In the tail the step after n others has the n-th part of a weight of 1, halved each time.
    """
    halvings = 0
    if step == len(stairs.ends):
        halvings = 1
        while stream.take(1)[0] & 1:
            halvings += 1
        step += halvings - 1
    value = (step << stairs.width_bits) + offset
    weight = stairs.weights[min(step, len(stairs.ends))]
    num_bits = 64
    while True:
        with decimal.localcontext(decimal.Context(prec=num_bits, Emin=-(10**9), Emax=10**9)):
            chance = (Decimal(-(value**2)) / (2 * stairs.variance)).exp() * stairs.height * 2**halvings / weight
            # num_bits decimal digits resolve far more than num_bits bits do.
            scaled = chance * 2**num_bits
            slack = Decimal(10) ** -8
            if bits + 1 <= scaled - slack:
                return value, True
            if bits >= scaled + slack:
                return value, False
        bits = bits << 64 | int.from_bytes(stream.take(8), "little")
        num_bits += 64
