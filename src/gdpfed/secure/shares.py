"""Shamir's secret sharing over a prime field of a little more than 256 bits.

Place: a client splits its two secrets of 32 bytes among its holders; the server puts one of the two together again.

Guarantees (tests of the same name):
  any_threshold_of_shares_restores   every subset of that size, and every larger one.
  fewer_shares_say_nothing           any secret is consistent with them, each in exactly one way.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from gdpfed.errors import InputError
from gdpfed.secure.randomness import Stream

__all__ = ["PRIME", "SECRET_BYTES", "SHARE_BYTES", "restore", "split"]

# The smallest prime above 2^256.
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
# Random bytes for an element of the field: reduction leaves a bias of 2^-127.
_DRAW_BYTES = 48


def split(secret: bytes, *, threshold: int, points: Sequence[int], stream: Stream) -> dict[int, bytes]:
    """A share for each point, of which any ``threshold`` restore the secret."""
    if len(secret) != SECRET_BYTES:
        raise InputError(f"expected a secret of {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= len(points):
        raise InputError(f"expected a threshold from 1 to {len(points)}, the number of holders, got {threshold}")
    if len(set(points)) < len(points) or min(points) < 1 or max(points) >= PRIME:
        raise InputError("expected different points from 1 up")
    drawn = stream.take(_DRAW_BYTES * (threshold - 1))
    coefficients = [int.from_bytes(secret, "little")]
    coefficients += [
        int.from_bytes(drawn[start : start + _DRAW_BYTES], "little") % PRIME
        for start in range(0, len(drawn), _DRAW_BYTES)
    ]
    coefficients.reverse()
    shares = {}
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares[point] = value.to_bytes(SHARE_BYTES, "little")
    return shares


def restore(shares: Mapping[int, bytes], *, threshold: int) -> bytes | None:
    """The secret, from the shares with the lowest points; None if these are not shares of 32 bytes."""
    if len(shares) < threshold:
        raise InputError(f"expected {threshold} shares or more, got {len(shares)}")
    points = tuple(sorted(shares)[:threshold])
    values = (int.from_bytes(shares[point], "little") for point in points)
    secret = sum(weight * value for weight, value in zip(_weights(points), values, strict=True)) % PRIME
    return secret.to_bytes(SECRET_BYTES, "little") if secret < 1 << 8 * SECRET_BYTES else None


@functools.lru_cache(maxsize=1024)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0. Public, and remembered: in a complete graph all secrets have the same holders."""
    product = math.prod(points)
    denominators = [math.prod(other - point or point for other in points) % PRIME for point in points]
    # One inversion for all.
    prefixes = list(itertools.accumulate(denominators, lambda one, other: one * other % PRIME, initial=1))
    inverse = pow(prefixes[-1], -1, PRIME)
    weights = []
    for index in range(len(points) - 1, -1, -1):
        weights.append(product * prefixes[index] * inverse % PRIME)
        inverse = inverse * denominators[index] % PRIME
    return tuple(reversed(weights))
