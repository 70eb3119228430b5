"""Who is in which group of a plan, and whether the plan keeps what each of them allows.

Place: between a plan and the clients' budgets. A plan knows sizes of groups, not their members: these follow from the
budgets, the same way for the planner, the simulator, the ledger and a deployment.

Guarantees (tests of the same name):
  assignment_never_overspends    a client is in a group only if it allows that group's epsilon and delta.
  linked_people_stay_in_their_groups   where a plan counts people in several clients, budgets that put any client into
                                 another group are refused: the counts, and the person-level epsilon, would be others.

The plan has a digest of all clients' groups, not of each person's clients: that one, salted or not, could be tried out
by whoever knows the clients' names, and would tell who is linked to whom.
"""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.plan import Plan
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.rounding import allowance, delta_up, promise

__all__ = ["assign", "assignment_digest", "check_budgets"]


def assignment_digest(clients: Sequence[str], assignment: Sequence[int] | NDArray[np.int64]) -> str:
    """SHA-256 of which client is in which group (by its place in the plan), in any order of the clients."""
    pairs = sorted((client, int(group)) for client, group in zip(clients, assignment, strict=True))
    return hashlib.sha256(b"gdpfed assignment v1\x00" + json.dumps(pairs).encode()).hexdigest()


def check_budgets(plan: Plan, budgets: Budgets, *, default_delta: float) -> None:
    """Raises PrivacyError unless the plan keeps every client's budget; ``default_delta`` is for clients without their
    own."""
    if not plan.is_private:
        raise PrivacyError(f"{plan.method} has no privacy: it keeps nobody's budget")
    place = assign(plan, budgets)
    deltas = np.array([group.delta for group in plan.groups])
    over = deltas[place] > budgets.deltas_or(default_delta)
    if over.any():
        first = int(np.argmax(over))
        group = plan.groups[place[first]]
        raise PrivacyError(
            f"{group.name!r} has delta={delta_up(group.delta)}, more than the "
            f"{allowance(float(budgets.deltas_or(default_delta)[first]))} that client {budgets.label(first)!r} allows: "
            f"state the delta that was agreed on, or make the plan again"
        )


def assign(plan: Plan, budgets: Budgets) -> NDArray[np.int64]:
    """Each client's group under a plan; raises PrivacyError if a private plan exceeds some client's epsilon or own
    delta, or if people were counted in other groups."""
    if plan.grouping == "given":
        if budgets.groups is None:
            raise InputError(
                "the plan's groups were given by a column 'group', which these budgets lack: use the same file"
            )
        names = {group.name: place for place, group in enumerate(plan.groups)}
        unknown = sorted(set(budgets.groups) - set(names))
        if unknown:
            raise InputError(f"the plan has no group {unknown[0]!r}: make the plan again for these budgets")
        place = np.array([names[name] for name in budgets.groups], dtype=np.int64)
    else:
        order = np.argsort([group.epsilon for group in plan.groups], kind="stable")
        edges = np.array([plan.groups[index].epsilon for index in order])
        position = (
            np.searchsorted(edges, budgets.epsilons, side="right") - 1
            if plan.is_private
            else np.zeros(len(budgets), int)
        )
        if (position < 0).any():
            strict = int(np.argmin(budgets.epsilons))
            raise PrivacyError(
                f"client {budgets.label(strict)!r} allows epsilon={budgets.epsilons[strict]:g}, less than every group "
                f"of the plan: "
                f"make the plan again for these budgets"
            )
        place = order[position].astype(np.int64)
    if plan.is_private:
        _check_members(plan, budgets, place)
    return place


def _check_members(plan: Plan, budgets: Budgets, place: NDArray[np.int64]) -> None:
    epsilons = np.array([group.epsilon for group in plan.groups])
    deltas = np.array([group.delta for group in plan.groups])
    over = (epsilons[place] > budgets.epsilons) | (deltas[place] > budgets.deltas_or(np.inf))
    if over.any():
        first = int(np.argmax(over))
        group = plan.groups[place[first]]
        raise PrivacyError(
            f"{group.name!r} spends up to ({promise(group.epsilon)}, {delta_up(group.delta)}), more than client "
            f"{budgets.label(first)!r} allows: make the plan again for these budgets"
        )
    sizes = np.bincount(place, minlength=len(plan.groups))
    for group, size in zip(plan.groups, sizes, strict=True):
        if size != group.num_clients:
            raise PrivacyError(
                f"{group.name!r} was planned for {group.num_clients} clients, these budgets put {size} in it: make the "
                f"plan again"
            )
    _check_linked(plan, budgets, place)


def _check_linked(plan: Plan, budgets: Budgets, place: NDArray[np.int64]) -> None:
    """People in several clients were counted by group: every client must still be in its group."""
    if not plan.linked:
        return
    if budgets.clients is None:
        raise InputError("expected budgets that name their clients, since the plan has linked clients, got counts only")
    if assignment_digest(budgets.clients, place) != plan.assignment_digest:
        raise PrivacyError(
            "the plan counts linked clients by group, and these budgets, or names, put clients into other groups than "
            "it was made for, so its person-level epsilon may be false: make the plan again for these budgets"
        )
