"""Who masks with whom, and who holds whose shares.

Place: after the roster, by client and server alike. Up to `Tolerance.complete_up_to` clients everyone is everyone's
neighbour. In larger cohorts the clients stand in a circle, in an order that follows from the hash of the signed roster,
and each is the neighbour of the k/2 before and after it, so that the cost of a client does not grow with the cohort. A
client's holders are its neighbours and itself.

What a circle risks, for an honest-but-curious server with c colluders, and D dropouts that do not depend on the order
(union bounds over n clients; `failures`):
  security     some client has a threshold of colluders among its neighbours, or k/2 consecutive clients are all
               colluders or lost, which is what it takes to cut the circle: then a part of the sum could be seen alone;
  completeness some client keeps fewer holders than the threshold: then the sum is aborted.
The degree is the smallest with 2^-40 and 2^-20. Where there is none, the graph is complete, where neither can happen. A
malicious server that drops chosen clients after it saw the circle can cut it if it may lose k of them: raise
`complete_up_to` against that.

Guarantees (tests of the same name):
  everyone_has_the_same_degree     and a neighbour's neighbour is oneself.
  order_follows_from_the_roster    another roster, another circle; the same on every machine.
  failure_bounds_hold              against simulation, where failures are frequent enough to be seen.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from gdpfed.errors import InputError
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import KeyStream, derive

__all__ = ["Topology", "failures", "neighbours", "topology"]

_SECURITY, _COMPLETENESS = 2.0**-40, 2.0**-20


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
    if cohort > tolerance.complete_up_to:
        for degree in range(8, cohort - 1, 2):
            threshold = _threshold(cohort, degree, dropouts, colluders)
            security, completeness = failures(
                cohort=cohort, degree=degree, threshold=threshold, dropouts=dropouts, colluders=colluders
            )
            if security <= _SECURITY and completeness <= _COMPLETENESS:
                return Topology(
                    cohort=cohort,
                    degree=degree,
                    threshold=threshold,
                    quorum=quorum,
                    dropouts=dropouts,
                    colluders=colluders,
                )
    return Topology(
        cohort=cohort, degree=cohort - 1, threshold=quorum, quorum=quorum, dropouts=dropouts, colluders=colluders
    )


def _threshold(cohort: int, degree: int, dropouts: int, colluders: int) -> int:
    """Above half, and at least half-way between the expected colluders and the expected survivors."""
    holders = degree + 1
    return max(holders // 2 + 1, math.ceil(holders * (colluders + cohort - dropouts) / (2 * cohort)))


def failures(*, cohort: int, degree: int, threshold: int, dropouts: int, colluders: int) -> tuple[float, float]:
    """Upper bounds on the probabilities that a circle is insecure, or loses too many holders of a client."""
    from scipy import stats

    caught = float(stats.hypergeom.sf(threshold - 1, cohort - 1, colluders, degree))
    bad = min(colluders + dropouts, cohort)
    run = math.exp(
        math.fsum(
            math.log((bad - place) / (cohort - place)) if bad > place else -math.inf for place in range(degree // 2)
        )
    )
    # The client itself may be lost too.
    lost = float(stats.hypergeom.cdf(threshold - 1, cohort - 1, max(cohort - 1 - dropouts, 0), degree))
    return min(1.0, cohort * (caught + run)), min(1.0, cohort * lost)


@functools.lru_cache(maxsize=64)
def neighbours(roster_hash: bytes, *, cohort: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """For each place in the roster, the places of its neighbours, in increasing order."""
    if degree >= cohort - 1:
        return tuple(tuple(other for other in range(cohort) if other != place) for place in range(cohort))
    if degree % 2 or degree < 2:
        raise InputError(f"expected an even degree in a circle, got degree={degree}")
    stream = KeyStream(derive(roster_hash, info=b"gdpfed circle v1"))
    drawn = np.frombuffer(stream.take(8 * cohort), dtype="<u8")
    circle = np.argsort(drawn, kind="stable").tolist()
    found: list[tuple[int, ...]] = [()] * cohort
    steps = [step for half in range(1, degree // 2 + 1) for step in (half, -half)]
    for at, place in enumerate(circle):
        found[place] = tuple(sorted(circle[(at + step) % cohort] for step in steps))
    return tuple(found)
