"""What a plan has spent before its last round.

Place: beside the plan, for runs that are under way or were stopped.
"""

import dataclasses
import math

from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.rotation import most_asks
from gdpfed.privacy.accountant import epsilon_bound

__all__ = ["spent_after", "spent_so_far"]


def spent_so_far(plan: Plan, rounds: int) -> tuple[float, ...]:
    """An upper bound on each group's release epsilon after so many rounds; infinite without privacy.

    In a rotation that of its most asked client, which is its epsilon against the server too.
    """
    return tuple(
        spent_after(plan, group, most_asks(plan, group, rounds=rounds) if plan.is_rotation else rounds)
        for group in plan.groups
    )


def spent_after(plan: Plan, group: Group, releases: int) -> float:
    """The same for one group, by how many releases its most charged client was in: more than planned, if some were
    lost."""
    if not plan.is_private:
        return math.inf
    if releases in (0, plan.num_releases):
        return group.epsilon_release if releases else 0.0
    mechanism = dataclasses.replace(plan.mechanism(group), num_rounds=releases)
    bound = epsilon_bound(mechanism, delta=group.delta, accountant=plan.accountant)
    return min(bound, group.epsilon_release) if releases < plan.num_releases else bound
