"""The paper's Problem 1 and Theorem 1, as printed, to hold the closed form of its rates against.

Nothing is planned with either: Theorem 1's noise can be too small (docs/limits.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from gdpfed.planning.groups import Grouping

__all__ = ["ProblemOne", "problem_one_rates", "theorem_one_noise_variance"]

FloatArray = NDArray[np.float64]


def theorem_one_noise_variance(*, epsilon: float, delta: float, sampling_rate: float, num_rounds: int) -> float:
    """The paper's Theorem 1: 7 q^2 T (epsilon + 2 log(1/delta)) / epsilon^2. It can be too small: shown, never used."""
    return 7 * sampling_rate**2 * num_rounds * (epsilon + 2 * math.log(1 / delta)) / epsilon**2


@dataclass(frozen=True, kw_only=True)
class ProblemOne:
    """The paper's Problem 1: omega_m, phi*_m and Theorem 1's noise as the paper defines them."""

    groups: Grouping
    num_rounds: int
    learning_rate: float
    local_steps: int

    @property
    def mu_4(self) -> float:
        """32 eta tau + eta + eta / tau."""
        return 32 * self.learning_rate * self.local_steps + self.learning_rate + self.learning_rate / self.local_steps

    def objective(self, rates: Sequence[float]) -> float:
        """What the paper minimises."""
        cohort = math.fsum(rate * size for rate, size in zip(rates, self.groups.sizes, strict=True))
        return self.mu_4 / cohort + self.varying_part(np.array(rates))

    def varying_part(self, rates: FloatArray) -> float:
        """The objective less mu_4 sum_m omega_m = mu_4 / (q n), a constant that is all but 1e-5 of the whole."""
        progress = self.learning_rate * self.local_steps
        cohorts = rates * np.array(self.groups.sizes, dtype=np.float64)
        weights = cohorts**2 / (cohorts**2).sum() / cohorts.sum()
        noise = np.array(
            [
                theorem_one_noise_variance(epsilon=epsilon, delta=delta, sampling_rate=rate, num_rounds=self.num_rounds)
                for epsilon, delta, rate in zip(self.groups.epsilons, self.groups.deltas, rates, strict=True)
            ]
        )
        root_phi = 2 * weights * noise / (progress * self.mu_4 * cohorts**2)
        privacy_error = 4 / progress * (1 - root_phi) * weights * noise / cohorts**2
        return float((weights * (self.mu_4 * root_phi**2 + privacy_error)).sum())


def problem_one_rates(problem: ProblemOne, *, participation: float) -> tuple[float, ...]:
    """Minimises Problem 1 numerically.

    The objective as printed varies only in its fifth digit, and a solver stops early on it (the paper's did). Without
    its constant part, and brought to about 1, it has the same minimiser and is well conditioned.
    """
    sizes = np.array(problem.groups.sizes, dtype=np.float64)
    cohort = participation * sizes.sum()
    scale = problem.varying_part(np.full(len(sizes), participation))
    # Unknowns are rates relative to the uniform one, so that all are about 1.
    solution = optimize.minimize(
        lambda relative: problem.varying_part(relative * participation) / scale,
        np.ones(len(sizes)),
        method="SLSQP",
        jac="3-point",
        bounds=[(1e-9, 1 / participation)] * len(sizes),
        constraints={"type": "eq", "fun": lambda relative: (relative * participation * sizes).sum() / cohort - 1},
        options={"ftol": 1e-15, "maxiter": 2000},
    )
    rates = np.clip(solution.x * participation, 0.0, 1.0)
    return tuple(float(rate) for rate in rates)
