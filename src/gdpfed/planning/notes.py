"""What to know before a plan is trusted: sentences that planning, training and reports show.

Place: after a plan; nothing depends on them.
"""

from gdpfed.planning.plan import Plan
from gdpfed.privacy.rounding import allowance, promise

__all__ = ["plan_doubts", "plan_notes"]


def plan_doubts(plan: Plan) -> list[str]:
    """What makes a plan worth little: a delta that promises nothing, groups of hardly anybody."""
    doubts = []
    failures = plan.largest_delta * plan.num_clients
    if plan.is_private and failures > 0.1:
        doubts.append(
            f"delta times clients is {promise(failures)}: a delta below {allowance(0.1 / plan.num_clients, 1)} is safer"
        )
    doubts += [
        f"{group.name} has {group.expected_cohort:.2g} clients a round: raise participation or merge groups"
        for group in plan.groups
        if group.expected_cohort < 1
    ]
    return doubts


def plan_notes(plan: Plan) -> list[str]:
    """The doubts, and weights that hide a step."""
    notes = plan_doubts(plan)
    if plan.is_private and abs(plan.step_size - 1) > 0.2:
        notes.append(
            f"the weights hide a step of {plan.step_size:.3f} (dp-fedavg has 1): compare methods at equal step, by "
            f"weights 'inverse-variance' or by the server learning rate"
        )
    return notes
