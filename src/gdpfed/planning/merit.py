"""What a plan makes of signal and noise: its figures of merit.

Place: beside the plan, whose properties of the same names these are. They read nothing but the plan, so they cost no
privacy.
"""

import math
from typing import TYPE_CHECKING

from gdpfed.planning import weights
from gdpfed.planning.sparsity import noise_energy_kept

if TYPE_CHECKING:
    from gdpfed.planning.plan import Plan

__all__ = ["noise_at_equal_step", "paper_noise_magnitude", "signal_to_noise", "step_size"]


def step_size(plan: "Plan") -> float:
    """How far the model moves if all clients send the same update of norm C, in units of the server learning rate."""
    return math.fsum(
        group.weight
        * group.expected_cohort
        * group.scale
        * (group.clip_norm / plan.clip_norm if plan.is_private else 1.0)
        for group in plan.groups
    )


def signal_to_noise(plan: "Plan") -> float:
    """Updates of norm C that agree, over the noise std of a coordinate, in one round; infinite without noise."""
    if not plan.is_private:
        return math.inf
    cohorts = [group.expected_cohort for group in plan.groups]
    noise = [group.noise_multiplier for group in plan.groups]
    if plan.release == "pooled":
        # Clipping at c_m and scaling both enter as noise_std / (clip_norm * scale), which is the noise multiplier.
        return weights.pooled_signal_to_noise(cohorts, noise)
    return weights.signal_to_noise([group.weight for group in plan.groups], cohorts, noise)


def noise_at_equal_step(plan: "Plan") -> float:
    """Noise variance of a coordinate of the update, at step 1, in units of (1/qn)^2: C^2 sigma^2 for DP-FedAvg.

    One scale for every method. Sparsified groups count the noise that Top-k really keeps where there is no signal.
    """
    if not plan.is_private:
        return 0.0
    drawn = plan.groups[:1] if plan.release == "pooled" else plan.groups
    variance = math.fsum(
        (group.weight * group.noise_std) ** 2 * noise_energy_kept(group.keep_fraction) for group in drawn
    )
    return variance * (plan.expected_cohort / step_size(plan)) ** 2


def paper_noise_magnitude(plan: "Plan") -> float:
    """The paper's Lambda as printed: a plain mean of C^2 sigma_m^2 at uniform rates, else weighted by r^2 and k/d.

    The two are on different scales; `noise_at_equal_step` is the one to compare.
    """
    if not plan.is_private:
        return 0.0
    groups = plan.groups
    variances = [plan.clip_norm**2 * group.noise_multiplier**2 for group in groups]
    if len({group.sampling_rate for group in groups}) == 1 and all(group.keep_fraction == 1 for group in groups):
        return math.fsum(variances) / len(groups)
    squares = [group.expected_cohort**2 for group in groups]
    total = math.fsum(squares)
    shares = (
        square / total * group.keep_fraction * variance
        for square, group, variance in zip(squares, groups, variances, strict=True)
    )
    return math.fsum(shares) / len(groups)
