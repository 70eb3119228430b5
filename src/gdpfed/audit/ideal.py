"""Canaries of a mechanism that does exactly what the plan says: what an audit of this size can see at all.

Place: beside the canaries. Gaussian draws by numpy, without sampler, clip, encoding or sum; with ``fraction`` of the
planned noise.

Guarantees (tests of the same name):
  ideal_is_the_planned_mechanism     mean and variance of each round, and the share of rounds.
"""

from collections.abc import Iterator

import numpy as np

from gdpfed import streams
from gdpfed.audit.bounds import Finding, judge
from gdpfed.audit.canaries import SEEDS, Observed, ViewedCanaries, scored
from gdpfed.audit.privacy_curves import CurveFamily
from gdpfed.planning.plan import Plan

__all__ = ["FRACTIONS", "ideal_canaries", "smallest_visible"]

_BATCH = 1000
FRACTIONS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2)
# Beyond the seeds of batches.
_IDEAL = 2**31


def ideal_canaries(plan: Plan, *, place: int, num_canaries: int, seed: int, fraction: float = 1.0) -> ViewedCanaries:
    """As `canaries.send_canaries`, of the mechanism that the accountant judges."""

    def batches() -> Iterator[Observed]:
        for number, start in enumerate(range(0, num_canaries, _BATCH)):
            yield _observe(
                plan,
                place=place,
                num_canaries=min(_BATCH, num_canaries - start),
                seed=seed * SEEDS + _IDEAL + number,
                fraction=fraction,
            )

    return scored(batches(), plan, place=place)


def _observe(plan: Plan, *, place: int, num_canaries: int, seed: int, fraction: float) -> Observed:
    group = plan.groups[place]
    shape = (plan.num_rounds, num_canaries)
    taking_part = streams.generator(seed, "sample").random(shape) < group.sampling_rate
    if plan.max_participations is not None:
        taking_part &= np.cumsum(taking_part, axis=0) <= plan.max_participations
    inside = np.arange(num_canaries) < num_canaries // 2
    noise = fraction * streams.generator(seed, "noise").standard_normal(shape)
    sums = noise + (taking_part & inside) / group.noise_multiplier
    return Observed(sums=sums, server_sums=sums, taking_part=taking_part, inside=inside)


def smallest_visible(
    plan: Plan,
    *,
    place: int,
    num_canaries: int,
    seed: int,
    families: dict[str, CurveFamily],
    delta: float,
    alpha: float,
) -> dict[str, float | None]:
    """For each view the largest fraction of the noise at which a lack of it was flagged, in one simulation of each.

    By bisection; None if not even the smallest was.
    """
    seen: dict[tuple[str, int], bool] = {}

    def flagged(view: str, step: int) -> bool:
        if (view, step) not in seen:
            made = ideal_canaries(plan, place=place, num_canaries=num_canaries, seed=seed + 1, fraction=FRACTIONS[step])
            for name, family in families.items():
                found: Finding = judge(
                    getattr(made, name), family, claim=np.inf, delta=delta, alpha=alpha, measure_noise=False
                )
                seen[name, step] = found.curve_contradicted
        return seen[view, step]

    visible: dict[str, float | None] = {}
    for view in families:
        low, high = 0, len(FRACTIONS) - 1
        if not flagged(view, high):
            visible[view] = None
            continue
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if flagged(view, middle) else (middle + 1, high)
        visible[view] = FRACTIONS[high]
    return visible
