"""A claim as a whole curve: for every false positive rate, how often an adversary can be right.

Place: below the judge and the attacks, all of which are pointed at an `AuditedGroup`. A plan promises one epsilon at
one delta, but its noise, rate and rounds imply delta for *every* epsilon, and a test that is not allowed by that curve
contradicts the plan long before it contradicts the one point.

A family has one parameter, the noise as a fraction of what was planned: the largest fraction that an audit's outcome
allows bounds what is really there.

Guarantees (tests of the same name):
  curve_is_the_gaussian_trade_off       at rate 1 the rates are those of two Gaussians, in closed form.
  server_curve_is_a_mixture             against a sum over participations, computed number by number.
  fewer_points_allow_more               a coarser grid never forbids what a finer one allows.
  less_noise_allows_more                a smaller fraction of the noise allows every test that a larger one does.
"""

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from gdpfed.planning.plan import Group, Plan
from gdpfed.privacy.accountant import (
    COARSE_RELATIVE_ERROR,
    SampledGaussian,
    delta_after_rounding,
    gaussian_epsilon,
    grid_interval,
)

__all__ = [
    "AuditedGroup", "BoolArray", "CurveFamily", "FloatArray", "PrivacyCurve", "ReleaseFamily", "ServerFamily",
    "gaussian_delta",
]  # fmt: skip

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# Fine where budgets are, and far enough for a test that is right in one of 1e6 cases.
_EPSILONS = np.concatenate([np.linspace(0, 2, 81)[:-1], np.linspace(2, 16, 141)])
# Participations that are rarer than this count as a certain breach, which allows more.
_RARE = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyCurve:
    """delta at some epsilons (>= 0), valid in both directions: add and remove."""

    epsilons: FloatArray
    deltas: FloatArray

    def least_false_positives(self, true_positives: FloatArray | float) -> FloatArray:
        """The smallest false positive rate that the curve allows a test with this true positive rate."""
        rate = np.asarray(true_positives, dtype=np.float64)[..., None]
        one_way = (rate - self.deltas) * np.exp(-self.epsilons)
        # The same promise with the two worlds swapped and the test turned round.
        other_way = 1 - self.deltas - np.exp(self.epsilons) * (1 - rate)
        least: FloatArray = np.maximum(one_way, other_way).max(axis=-1)
        return np.clip(least, 0.0, 1.0)

    def allows(self, *, true_positives: float, false_positives: float) -> bool:
        """Whether a mechanism on this curve may have such a test."""
        return float(self.least_false_positives(true_positives)) <= false_positives


class CurveFamily(Protocol):
    """The curves of one mechanism with more or less noise than planned."""

    def curve(self, fraction: float) -> PrivacyCurve:
        """With ``fraction`` of the planned noise."""
        ...

    def epsilon(self, fraction: float) -> float:
        """Epsilon at the plan's delta with ``fraction`` of the planned noise, not rounded up."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReleaseFamily:
    """Whoever sees the released sums, and not who took part: the accountant's own mechanism, by PLD."""

    mechanism: SampledGaussian
    delta: float

    def curve(self, fraction: float) -> PrivacyCurve:
        """As the protocol says; pessimistic by the grid."""
        return _released(self, fraction)[0]

    def epsilon(self, fraction: float) -> float:
        """As the protocol says; what the grid adds at most is taken off."""
        return _released(self, fraction)[1]


@functools.lru_cache(maxsize=256)
def _released(family: ReleaseFamily, fraction: float) -> tuple[PrivacyCurve, float]:
    """Curve and epsilon, which are of one composition."""
    noise, num_rounds = family.mechanism.noise_multiplier * fraction, family.mechanism.num_rounds
    if family.mechanism.sampling_rate == 1:
        deltas = gaussian_delta(_EPSILONS, math.sqrt(num_rounds) / noise)
        epsilon = gaussian_epsilon(noise_multiplier=noise, num_releases=num_rounds, delta=family.delta)
        return PrivacyCurve(epsilons=_EPSILONS, deltas=deltas), epsilon
    from gdpfed.privacy import pld

    interval = grid_interval(1.0, num_rounds, COARSE_RELATIVE_ERROR)
    composed = pld.composed_distribution(
        noise_multiplier=noise,
        sampling_rate=family.mechanism.sampling_rate,
        num_rounds=num_rounds,
        grid_interval=interval,
    )
    epsilon = float(composed.get_epsilon_for_delta(delta_after_rounding(family.delta, num_rounds)))
    deltas = np.asarray(composed.get_delta_for_epsilon(_EPSILONS))
    return PrivacyCurve(epsilons=_EPSILONS, deltas=deltas), max(epsilon - num_rounds * interval**2, 0.0)


@dataclass(frozen=True, kw_only=True)
class ServerFamily:
    """The server, which knows the rounds a client was in: k Gaussian releases, k as random as the coins make it."""

    mechanism: SampledGaussian
    delta: float
    max_participations: int | None = None

    @functools.cached_property
    def _chances(self) -> tuple[FloatArray, FloatArray, float]:
        """Roots of the numbers of participations, their probabilities, and what is left out."""
        counts = np.arange(self.mechanism.num_rounds + 1)
        chances = stats.binom.pmf(counts, self.mechanism.num_rounds, self.mechanism.sampling_rate)
        if self.max_participations is not None and self.max_participations < len(chances) - 1:
            chances[self.max_participations] += chances[self.max_participations + 1 :].sum()
            chances = chances[: self.max_participations + 1]
        kept = np.flatnonzero(chances > _RARE)
        rest = max(0.0, 1.0 - float(chances[kept].sum()))
        return np.sqrt(kept), chances[kept], rest

    def curve(self, fraction: float) -> PrivacyCurve:
        """As the protocol says, in closed form."""
        return PrivacyCurve(epsilons=_EPSILONS, deltas=self._deltas(_EPSILONS, fraction))

    def _deltas(self, epsilons: FloatArray, fraction: float) -> FloatArray:
        roots, chances, rest = self._chances
        noise = self.mechanism.noise_multiplier * fraction
        each = np.stack([gaussian_delta(epsilons, root / noise) for root in roots])
        total: FloatArray = chances @ each + rest
        return total

    def epsilon(self, fraction: float) -> float:
        """As the protocol says: of a client that does not know how often it will be sampled."""

        def is_below(epsilon: float) -> bool:
            return float(self._deltas(np.array([epsilon]), fraction)[0]) > self.delta

        low, high = 0.0, 1.0
        while is_below(high) and high < 1e6:
            low, high = high, 2 * high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if is_below(middle) else (low, middle)
        return low


def gaussian_delta(epsilons: FloatArray, shift: float) -> FloatArray:
    """delta of telling N(shift, 1) from N(0, 1)."""
    if shift == 0:
        return np.zeros_like(epsilons)
    above = special.ndtr(shift / 2 - epsilons / shift)
    below = np.exp(epsilons + special.log_ndtr(-shift / 2 - epsilons / shift))
    deltas: FloatArray = np.clip(above - below, 0.0, 1.0)
    return deltas


@dataclass(frozen=True, kw_only=True)
class AuditedGroup:
    """A group of a plan, by its index; so many canaries are sent, with this seed."""

    plan: Plan
    group_index: int
    num_canaries: int
    seed: int

    @property
    def group(self) -> Group:
        """The group itself."""
        return self.plan.groups[self.group_index]

    @property
    def mechanism(self) -> SampledGaussian:
        """As the accountant judges it."""
        return self.plan.mechanism(self.group)

    @property
    def sum_index(self) -> int:
        """Which of a round's sums the group is in."""
        return 0 if self.plan.release == "pooled" else self.group_index

    def claims(self) -> dict[str, tuple[CurveFamily, float]]:
        """For both views its curves, and the epsilon that the plan claims at the group's delta. In a rotation they are
        the same: the server knows who was asked, as everybody does, and not the coins."""
        mechanism, group = self.mechanism, self.group
        release: CurveFamily = ReleaseFamily(mechanism=mechanism, delta=group.delta)
        server = release
        if not self.plan.is_rotation:
            server = ServerFamily(
                mechanism=mechanism, delta=group.delta, max_participations=self.plan.max_participations
            )
        return {"release": (release, group.epsilon_release), "server": (server, group.epsilon_server)}
