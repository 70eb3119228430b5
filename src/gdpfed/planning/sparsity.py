"""What fraction of the coordinates of a group's noisy sum is kept.

Place: after the noise, which is what makes it free of privacy cost. The fractions are given (the paper uses .7, .8,
.9, strictest group first), follow the paper's closed form, or are all 1.

Guarantees (tests of the same name):
  closed_form_is_the_papers        k*_m / d = 1 - 2 omega_m sigma_m^2 / (eta tau mu_4 r_m^2), between 0 and 1.
  largest_coordinates_hold_most_noise   keeping the largest fraction f of pure noise keeps more than f of its energy.
"""

import math
from collections.abc import Sequence

from gdpfed.errors import InputError

__all__ = ["check_keep_fractions", "closed_form_keep_fractions", "default_keep_fractions", "noise_energy_kept"]

_PAPER_STRICTEST, _PAPER_LAXEST = 0.7, 0.9


def default_keep_fractions(num_groups: int) -> tuple[float, ...]:
    """The paper's .7, .8, .9 for three groups; for other numbers evenly spaced between the same ends."""
    if num_groups == 1:
        return (_PAPER_STRICTEST,)
    step = (_PAPER_LAXEST - _PAPER_STRICTEST) / (num_groups - 1)
    return tuple(round(_PAPER_STRICTEST + step * index, 12) for index in range(num_groups))


def check_keep_fractions(fractions: Sequence[float], num_groups: int) -> tuple[float, ...]:
    """Returns the fractions if there is one for each group, each above 0 and at most 1."""
    if len(fractions) != num_groups:
        raise InputError(f"expected a keep fraction for each of {num_groups} groups, got {len(fractions)}")
    for fraction in fractions:
        if not 0 < fraction <= 1:
            raise InputError(f"expected 0 < keep fraction <= 1, got {fraction}")
    return tuple(float(fraction) for fraction in fractions)


def closed_form_keep_fractions(
    *,
    weights: Sequence[float],
    noise_multipliers: Sequence[float],
    expected_cohorts: Sequence[float],
    learning_rate: float,
    local_steps: int,
) -> tuple[float, ...]:
    """The paper's k*_m / d. It is above 0.99999 in the paper's own configurations (docs/limits.md)."""
    mu_4 = 32 * learning_rate * local_steps + learning_rate + learning_rate / local_steps
    return tuple(
        min(max(1 - 2 * weight * noise**2 / (learning_rate * local_steps * mu_4 * cohort**2), 0.0), 1.0)
        for weight, noise, cohort in zip(weights, noise_multipliers, expected_cohorts, strict=True)
    )


def noise_energy_kept(keep_fraction: float) -> float:
    """The share of the noise's energy in the largest ``keep_fraction`` of its coordinates, where there is no signal.

    The paper counts ``keep_fraction`` itself; but Top-k selects by magnitude, and the largest coordinates hold most of
    the noise.
    """
    if keep_fraction >= 1:
        return 1.0
    from scipy import special

    threshold = -float(special.ndtri(keep_fraction / 2))
    return keep_fraction + 2 * threshold * math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
