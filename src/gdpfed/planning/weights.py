"""The factor on each group's noisy sum, and what it makes of signal and noise.

Place: after the noise multipliers, before the update. Weights touch only released sums: they cost no privacy.

`paper`             omega_m = (1/qn) r_m^2 / sum r^2. Not normalised: sum omega_m r_m is 1/3 for three equal cohorts, a
                    hidden server learning rate.
`inverse-variance`  omega_m proportional to r_m / sigma_m^2, with sum omega_m r_m = 1: the least noise for a unit of
                    signal.
`pooled`            one factor for the one sum of all groups, 1 / sum(r_m / sigma_m).

Guarantees (tests of the same name):
  inverse_variance_is_best       no other weights have a larger signal-to-noise.
  paper_weights_hide_a_step      their step is 1/3 at uniform rates.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "WEIGHTINGS",
    "WEIGHTS",
    "Weighting",
    "inverse_variance_weights",
    "paper_weights",
    "pooled_signal_to_noise",
    "signal_to_noise",
    "step_size",
]

Weighting = Literal["paper", "inverse-variance"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)

Floats = Sequence[float] | NDArray[np.float64]


def paper_weights(expected_cohorts: Floats) -> tuple[float, ...]:
    """The paper's omega_m, as printed."""
    cohorts = np.asarray(expected_cohorts, dtype=np.float64)
    return tuple(float(weight) for weight in cohorts**2 / (cohorts**2).sum() / cohorts.sum())


def inverse_variance_weights(expected_cohorts: Floats, noise_multipliers: Floats) -> tuple[float, ...]:
    """Proportional to signal over noise variance, with a step of 1."""
    cohorts, noise = np.asarray(expected_cohorts, dtype=np.float64), np.asarray(noise_multipliers, dtype=np.float64)
    raw = cohorts / noise**2
    return tuple(float(weight) for weight in raw / (raw * cohorts).sum())


WEIGHTS: dict[Weighting, Callable[[Floats, Floats], tuple[float, ...]]] = {
    "paper": lambda expected_cohorts, _: paper_weights(expected_cohorts),
    "inverse-variance": inverse_variance_weights,
}


def step_size(weights: Floats, expected_cohorts: Floats) -> float:
    """sum_m omega_m r_m: how far the model moves when all clients agree; 1 for DP-FedAvg."""
    return float(np.dot(weights, expected_cohorts))


def signal_to_noise(weights: Floats, expected_cohorts: Floats, noise_multipliers: Floats) -> float:
    """Of the weighted sum of separate group sums: updates of norm C that agree, over the noise std of a coordinate."""
    noise = np.asarray(weights) * np.asarray(noise_multipliers)
    return step_size(weights, expected_cohorts) / float(np.sqrt((noise**2).sum()))


def pooled_signal_to_noise(expected_cohorts: Floats, noise_multipliers: Floats) -> float:
    """Of one sum in which each client's update is scaled by 1 / noise multiplier and the noise std is C."""
    return float((np.asarray(expected_cohorts) / np.asarray(noise_multipliers)).sum())
