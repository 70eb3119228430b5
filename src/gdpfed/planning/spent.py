"""What a plan has spent before its last round.

Place: beside the plan, for runs that are under way or were stopped.
"""

import dataclasses
import math

from gdpfed.planning.plan import Plan
from gdpfed.planning.rotation import most_asks
from gdpfed.privacy.accountant import epsilon_bound

__all__ = ["spent_so_far"]


def spent_so_far(plan: Plan, rounds: int) -> tuple[float, ...]:
    """An upper bound on each group's release epsilon after so many rounds; infinite without privacy.

    In a rotation that of its most asked client, which is its epsilon against the server too.
    """
    if not plan.is_private:
        return (math.inf,) * len(plan.groups)
    if rounds == plan.num_rounds:
        return tuple(group.epsilon_release for group in plan.groups)
    charged = [most_asks(plan, group, rounds=rounds) if plan.is_rotation else rounds for group in plan.groups]
    return tuple(
        0.0
        if count == 0
        else min(
            epsilon_bound(
                dataclasses.replace(plan.mechanism(group), num_rounds=count),
                delta=group.delta,
                accountant=plan.accountant,
            ),
            group.epsilon_release,
        )
        for group, count in zip(plan.groups, charged, strict=True)
    )
