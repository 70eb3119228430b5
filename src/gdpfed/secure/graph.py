"""Who masks with whom, and who holds whose shares.

Place: after the roster, by client and server alike. Up to `Tolerance.complete_up_to` clients everyone is everyone's
neighbour. In larger cohorts the clients stand in a circle, in an order that follows from the hash of the signed roster,
and each is the neighbour of the k/2 before and after it, so that the cost of a client does not grow with the cohort. A
client's holders are its neighbours and itself.

A **run** is k/2 clients that stand side by side. The circle has one number, the threshold t, and one rule, which every
client checks before it signs a set of survivors: *any two runs that do not overlap keep t survivors between them*.

Why that suffices against a server that lies, colludes with c clients, and loses whom it likes after it saw the circle.
Suppose that no two such runs hold t colluders.
  1. Honest survivors cannot be cut apart. To cut a circle, two runs must be without any honest survivor. By the rule
     they keep t survivors, who would all be colluders. So the honest survivors are connected by pair masks that nobody
     else knows, and all that can be unmasked is the sum of all of them, with at least n - D - c noise shares.
  2. Colluders alone restore nobody's secret: a client's neighbours are two runs, and t of them would be needed. So of
     a client's two secrets only the one comes out that honest holders reveal (`client`: of one agreed set).
  3. Enough holders survive to take the masks off: again because a client's neighbours are two runs.
When do two runs hold t colluders? Never if t > c. Else, for colluders that do not choose their places, with the
probability that `failure` bounds, at most 2^-64: choosing places means to make keys until the circle suits, and each
try has that chance. t is also more than half of the holders, so that more colluders than planned for are not at once
the end. `failure` bounds also how often dropouts that do not depend on the circle break the rule, by leaving fewer than
t of two runs: then the sum is aborted, and tried again. That is at most 2^-10, little beside `Tolerance.abort_rate`.

The degree is the smallest (of `_degrees`) for which both hold. Where there is none, the graph is complete: nothing can
be cut there, t is more than half of all and more than c, and every quorum of survivors has t holders.

Guarantees (tests of the same name):
  everyone_has_the_same_degree     and a neighbour's neighbour is oneself.
  order_follows_from_the_roster    another roster, another circle; the same on every machine.
  failure_bounds_hold              against simulation, where failures are frequent enough to be seen.
  fewest_in_two_runs_is_exact      against all pairs of runs, one by one.
  the_rule_keeps_survivors_connected   whoever is lost, wherever fewer than t colluders stand in two runs.
"""

import bisect
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gdpfed.errors import InputError
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import KeyStream, derive

__all__ = ["Topology", "circle", "failure", "fewest_in_two_runs", "neighbours", "topology"]

_SECURITY, _COMPLETENESS = Fraction(1, 2**64), Fraction(1, 2**10)
_SMALLEST_DEGREE = 8


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The public numbers of a cohort: part of its roster, recomputed by every client."""

    cohort: int
    degree: int
    threshold: int
    quorum: int
    dropouts: int
    colluders: int

    @property
    def num_holders(self) -> int:
        """Of each client's secrets, itself among them."""
        return self.degree + 1

    @property
    def smallest_survivors(self) -> int:
        """With fewer nothing is unmasked."""
        return self.cohort - self.dropouts


@functools.lru_cache(maxsize=4096)
def topology(cohort: int, tolerance: Tolerance) -> Topology:
    """The degree and thresholds of a cohort."""
    if cohort < 1:
        raise InputError(f"expected a cohort of 1 or more, got {cohort}")
    dropouts, colluders, quorum = tolerance.dropouts(cohort), tolerance.colluders(cohort), tolerance.quorum(cohort)
    liars = tolerance.liars(cohort)
    degree, threshold = cohort - 1, max(cohort // 2, liars) + 1
    if cohort > tolerance.complete_up_to:
        for smaller in _degrees(cohort):
            least = _threshold(cohort, smaller, liars)
            spare = smaller - least
            # Where more than that is lost on average, nothing needs to be computed.
            if spare * cohort >= dropouts * smaller and failure(cohort, dropouts, smaller, spare + 1) <= _COMPLETENESS:
                degree, threshold = smaller, least
                break
    return Topology(
        cohort=cohort, degree=degree, threshold=threshold, quorum=quorum, dropouts=dropouts, colluders=colluders
    )


def _degrees(cohort: int) -> Iterator[int]:
    """Even numbers; large ones in larger steps, of a thirtieth or so, where a step more or less costs nobody much."""
    degree = _SMALLEST_DEGREE
    while degree < cohort - 1:
        yield degree
        degree += 2 * (1 + degree // 64)


def _threshold(cohort: int, degree: int, colluders: int) -> int:
    """The smallest above half of the holders that colluders do not reach."""
    candidates = range(degree // 2 + 1, max(degree // 2, colluders) + 1)
    # The more it takes, the rarer it is.
    rare = bisect.bisect_left(
        candidates, True, key=lambda least: failure(cohort, colluders, degree, least) <= _SECURITY
    )
    return candidates.start + rare


def failure(cohort: int, marked: int, degree: int, least: int) -> Fraction:
    """An upper bound on the probability that some two runs hold at least so many of the marked clients."""
    pairs = cohort * (cohort - 1) // 2
    return Fraction(pairs * _ways(cohort, marked, degree, least), math.comb(cohort, degree))


def _ways(cohort: int, marked: int, drawn: int, least: int) -> int:
    """In how many ways, exactly: each count from the one before.

    In whole numbers, not by scipy: a node, which starts a process for each message, has no time to import it.
    """
    first, last = max(least, drawn - (cohort - marked), 0), min(marked, drawn)
    if first > last:
        return 0
    total = term = math.comb(marked, first) * math.comb(cohort - marked, drawn - first)
    for count in range(first, last):
        term = term * (marked - count) * (drawn - count) // ((count + 1) * (cohort - marked - drawn + count + 1))
        total += term
    return total


@functools.lru_cache(maxsize=64)
def circle(roster_hash: bytes, *, cohort: int) -> tuple[int, ...]:
    """The indices of a roster in the order in which they stand."""
    stream = KeyStream(derive(roster_hash, info=b"gdpfed circle v1"))
    drawn = np.frombuffer(stream.take(8 * cohort), dtype="<u8")
    return tuple(np.argsort(drawn, kind="stable").tolist())


def fewest_in_two_runs(present: Sequence[bool], *, degree: int) -> int:
    """Of all pairs of runs that do not overlap, the fewest that are ``present``, which is in the circle's order."""
    length, cohort = degree // 2, len(present)
    upto = np.concatenate([[0], np.cumsum(np.tile(np.asarray(present, dtype=np.int64), 2))])
    runs = upto[length : length + cohort] - upto[:cohort]
    # For each run the fewest in a run that begins where it ends, or later, and ends before it begins.
    width, fewest = 1, np.roll(runs, -length)
    choices = cohort - 2 * length + 1
    while 2 * width <= choices:
        fewest = np.minimum(fewest, np.roll(fewest, -width))
        width *= 2
    fewest = np.minimum(fewest, np.roll(fewest, width - choices))
    return int((runs + fewest).min())


@functools.lru_cache(maxsize=64)
def neighbours(roster_hash: bytes, *, cohort: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """For each index of the roster those of its neighbours, in increasing order."""
    if degree >= cohort - 1:
        return tuple(tuple(other for other in range(cohort) if other != index) for index in range(cohort))
    if degree % 2 or degree < 2:
        raise InputError(f"expected an even degree in a circle, got degree={degree}")
    standing = circle(roster_hash, cohort=cohort)
    around: list[tuple[int, ...]] = [()] * cohort
    steps = [step for half in range(1, degree // 2 + 1) for step in (half, -half)]
    for at, index in enumerate(standing):
        around[index] = tuple(sorted(standing[(at + step) % cohort] for step in steps))
    return tuple(around)
