"""Canaries of a mechanism that does exactly what the plan says: what an audit of this size can see at all.

Place: beside the canaries. Gaussian draws by numpy, without sampler, clip, encoding or sum; with ``fraction`` of the
planned noise.

Guarantees (tests of the same name):
  ideal_is_the_planned_mechanism     mean and variance of each round, and the share of rounds.
"""

import bisect
import functools
from dataclasses import replace

import numpy as np

from gdpfed import streams
from gdpfed.audit.audited_group import AuditedGroup
from gdpfed.audit.bounds import judge
from gdpfed.audit.canaries import SEEDS, Observed, ViewedCanaries, scored

__all__ = ["FRACTIONS", "ideal_canaries", "smallest_visible"]

_BATCH = 1000
FRACTIONS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2)
# Beyond the seeds of batches.
_IDEAL = 2**31


def ideal_canaries(audited: AuditedGroup, *, fraction: float = 1.0) -> ViewedCanaries:
    """As `canaries.send_canaries`, of the mechanism that the accountant judges."""
    batches = (
        replace(
            audited,
            num_canaries=min(_BATCH, audited.num_canaries - start),
            seed=audited.seed * SEEDS + _IDEAL + number,
        )
        for number, start in enumerate(range(0, audited.num_canaries, _BATCH))
    )
    return scored((_observe(batch, fraction) for batch in batches), audited.group)


def _observe(audited: AuditedGroup, fraction: float) -> Observed:
    plan, group, num_canaries, seed = audited.plan, audited.group, audited.num_canaries, audited.seed
    shape = (plan.num_rounds, num_canaries)
    taking_part = streams.generator(seed, "sample").random(shape) < group.sampling_rate
    if plan.max_participations is not None:
        taking_part &= np.cumsum(taking_part, axis=0) <= plan.max_participations
    inside = np.arange(num_canaries) < num_canaries // 2
    noise = fraction * streams.generator(seed, "noise").standard_normal(shape)
    sums = noise + (taking_part & inside) / group.noise_multiplier
    return Observed(sums=sums, server_sums=sums, taking_part=taking_part, inside=inside)


def smallest_visible(audited: AuditedGroup, *, alpha: float) -> dict[str, float | None]:
    """For each view the largest fraction of the noise at which a lack of it was flagged, in one simulation of each.

    By bisection; None if not even the smallest was.
    """
    delta, claims = audited.group.delta, audited.claims()

    @functools.cache
    def flagged(step: int) -> dict[str, bool]:
        canaries = ideal_canaries(replace(audited, seed=audited.seed + 1), fraction=FRACTIONS[step])
        return {
            view: judge(
                getattr(canaries, view), family, claim=np.inf, delta=delta, alpha=alpha, measure_noise=False
            ).curve_contradicted
            for view, (family, _) in claims.items()
        }

    def largest(view: str) -> float | None:
        last = len(FRACTIONS) - 1
        if not flagged(last)[view]:
            return None
        return FRACTIONS[bisect.bisect_left(range(last), True, key=lambda step: flagged(step)[view])]

    return {view: largest(view) for view in claims}
