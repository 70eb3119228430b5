"""Noise that keeps a person, all of whose clients together, within a limit.

Place: after the rates and the groups' own noise, before weights and sparsity. Budgets are those of clients; a person
with records in several of them loses more than any one allows. Where `PlanSettings.person_epsilon` limits that, noise
is raised: every group gets at least the noise of one common epsilon, the level, at its rate, and the level is the
largest that keeps the limit for everybody. So the groups with the laxest budgets, where a person loses most, pay
first, and a group whose own budget is below the level pays nothing. Rates are chosen for budgets cut off at the level,
too. What the groups promise stays as it was.

Guarantees (tests of the same name):
  people_stay_within_the_limit   whoever is spread over clients as declared, and whoever is in one.
  no_more_noise_than_needed      a level higher by 0.5 % exceeds the limit.
  a_level_beats_one_factor       its signal-to-noise is at least that of one common factor on all noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdpfed.errors import PrivacyError
from gdpfed.planning.groups import Members
from gdpfed.planning.people import PersonLoss
from gdpfed.privacy.calibrate import noise_multiplier_for, rough_noise_multiplier
from gdpfed.privacy.rounding import allowance

__all__ = ["PersonLimit"]

# How exactly the level is found, and the lowest that is tried, as a part of the limit.
_TOLERANCE, _LOWEST = 1e-3, 1e-3


@dataclass(frozen=True, kw_only=True)
class PersonLimit:
    """The limit on a person's epsilon, the groups that it binds, and what people lose."""

    epsilon: float
    groups: tuple[Members, ...]
    loss: PersonLoss

    def noise(self, rates: Sequence[float], own: Sequence[float]) -> tuple[float, ...]:
        """The groups' noise multipliers, at least their own, raised where the limit asks for it, and no more."""
        level = self.level(rates, own)
        for _ in range(20):
            raised = self._raised(rates, own, level, noise_multiplier_for)
            if self.loss.largest(rates, raised) <= self.epsilon:
                return raised
            level *= 1 - _TOLERANCE / 4
        raise PrivacyError(
            f"no noise keeps a person in several clients within person_epsilon={allowance(self.epsilon)}: raise it, "
            f"declare fewer clients per person, or lower the rounds"
        )

    def level(self, rates: Sequence[float], own: Sequence[float]) -> float:
        """About the largest epsilon that every group may have, at least at its own noise."""

        def spent(counts: tuple[int, ...], level: float) -> float:
            return self.loss.of(counts, rates, self._raised(rates, own, level, rough_noise_multiplier))

        # Who is in one client loses what that client does: no level above the limit keeps it. Mostly one way of being
        # spread over the groups costs the most at every level, so one is looked at until all are kept.
        level, lowest = self.epsilon, self.epsilon * _LOWEST
        while level > lowest:
            costs = {counts: spent(counts, level) for counts in self.loss.spreads}
            worst = max(costs, key=lambda counts: costs[counts])
            if costs[worst] <= self.epsilon:
                break
            kept, exceeded = lowest, level
            while exceeded / kept > 1 + _TOLERANCE:
                middle = math.sqrt(kept * exceeded)
                kept, exceeded = (middle, exceeded) if spent(worst, middle) <= self.epsilon else (kept, middle)
            level = kept
        return level

    def _raised(
        self, rates: Sequence[float], own: Sequence[float], level: float, calibrate: Callable[..., float]
    ) -> tuple[float, ...]:
        def raised(members: Members, rate: float, noise: float) -> float:
            if members.epsilon <= level:
                return noise
            budget = members.budget(self.loss.num_rounds, self.loss.accountant) | {"epsilon": level}
            return max(noise, calibrate(**budget, sampling_rate=rate))

        return tuple(raised(*each) for each in zip(self.groups, rates, own, strict=True))
