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
import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError, suggestion
from gdpfed.privacy.accountant import Accountant, SampledGaussian
from gdpfed.privacy.adversaries import chained_epsilon, person_epsilon
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.rounding import allowance, delta_up, promise

if TYPE_CHECKING:
    from gdpfed.planning.plan import Plan, ReleaseKind

__all__ = [
    "PersonLoss", "allocations", "assign", "assignment_digest", "check_budgets", "epsilon_of_a_person", "linked_counts",
    "spreads_of",
]  # fmt: skip

IntArray = NDArray[np.int64]
# More ways to spread a person's clients over the groups than this are not all evaluated: links must be listed.
_MAX_ALLOCATIONS = 60


def linked_counts(
    linked: Sequence[Sequence[str]], budgets: Budgets, assignment: IntArray
) -> tuple[tuple[int, ...], ...]:
    """How many clients each person has in each group, without repetition."""
    if not linked:
        return ()
    if budgets.clients is None:
        raise InputError("expected a budgets file that names its clients for linked clients, got counts only")
    group_of = dict(zip(budgets.clients, assignment.tolist(), strict=True))
    counted: dict[tuple[int, ...], None] = {}
    for person in linked:
        for client in person:
            if client not in group_of:
                raise InputError(
                    f"linked client {client!r} is not among the budgets{suggestion(client, budgets.clients)}"
                )
        if len(set(person)) < len(person):
            raise InputError(f"expected different clients for one person, got {', '.join(person)}")
        counts = Counter(group_of[client] for client in person)
        counted[tuple(counts[group] for group in range(int(assignment.max()) + 1))] = None
    return tuple(counted)


@dataclass(frozen=True, kw_only=True)
class PersonLoss:
    """What a person in several clients loses, by how they are spread over the groups and how much noise these have.

    Each of ``spreads`` counts one person's clients in each group.
    """

    spreads: tuple[tuple[int, ...], ...]
    release: "ReleaseKind"
    num_rounds: int
    delta: float
    accountant: Accountant = "pld"
    is_rotation: bool = False

    def of(self, counts: Sequence[int], rates: Sequence[float], noise_multipliers: Sequence[float]) -> float:
        """Epsilon of a person who is spread like this; in a rotation, whatever rounds its clients share."""
        clients = [[(rate, noise)] * count for rate, noise, count in zip(rates, noise_multipliers, counts, strict=True)]
        together = list(itertools.chain.from_iterable(clients))
        if self.is_rotation:
            mechanisms = [
                SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=self.num_rounds)
                for rate, noise in together
            ]
            return chained_epsilon(mechanisms, delta=self.delta, accountant=self.accountant)
        sums = clients if self.release == "per-group" else [together]
        return person_epsilon(sums=sums, num_rounds=self.num_rounds, delta=self.delta)

    def largest(self, rates: Sequence[float], noise_multipliers: Sequence[float]) -> float:
        """Epsilon of the person who loses most; 0 where nobody is in several clients."""
        return max((self.of(counts, rates, noise_multipliers) for counts in self.spreads), default=0.0)


def allocations(plan: "Plan") -> tuple[tuple[int, ...], ...]:
    """All ways in which one person's clients may be spread over the groups, under the declared overlap; none without
    one."""
    sizes = [group.num_clients for group in plan.groups]
    return spreads_of(sizes, clients_per_person=plan.clients_per_person, linked=plan.linked)


def spreads_of(
    sizes: Sequence[int], *, clients_per_person: int, linked: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """The same for groups of these sizes."""
    num_groups = len(sizes)
    spread = list(dict.fromkeys(linked))
    ways = len(spread) + (
        math.comb(num_groups + clients_per_person - 1, clients_per_person) if clients_per_person > 1 else 0
    )
    if ways > _MAX_ALLOCATIONS:
        raise InputError(
            f"{ways} ways to spread one person's clients over {num_groups} groups are more than "
            f"{_MAX_ALLOCATIONS}: use fewer groups, a smaller clients_per_person, or list fewer linked clients"
        )
    if clients_per_person > 1:
        for chosen in itertools.combinations_with_replacement(range(num_groups), clients_per_person):
            counts = Counter(chosen)
            spread.append(tuple(min(counts[index], size) for index, size in enumerate(sizes)))
    return tuple(dict.fromkeys(spread))


def epsilon_of_a_person(plan: "Plan") -> float | None:
    """The largest epsilon of a person in the declared clients, or in one; None where no overlap was declared."""
    loss = PersonLoss(
        spreads=allocations(plan),
        release=plan.release,
        num_rounds=plan.num_releases,
        delta=plan.largest_delta,
        accountant=plan.accountant,
        is_rotation=plan.is_rotation,
    )
    if not loss.spreads:
        return None
    # Whoever is not linked is a person in one client.
    rates, noise = zip(*((group.sampling_rate, group.noise_multiplier) for group in plan.groups), strict=True)
    largest = loss.largest(rates, noise)
    return max(largest, *(group.epsilon_release for group in plan.groups))


def assignment_digest(clients: Sequence[str], assignment: Sequence[int] | IntArray) -> str:
    """SHA-256 of which client is in which group (by its number in the plan), in any order of the clients."""
    pairs = sorted((client, int(group)) for client, group in zip(clients, assignment, strict=True))
    return hashlib.sha256(b"gdpfed assignment v1\x00" + json.dumps(pairs).encode()).hexdigest()


def check_budgets(plan: "Plan", budgets: Budgets, *, default_delta: float) -> None:
    """Raises PrivacyError unless the plan keeps every client's budget; ``default_delta`` is for clients without their
    own."""
    if not plan.is_private:
        raise PrivacyError(f"{plan.method} has no privacy: it keeps nobody's budget")
    assignment = assign(plan, budgets)
    allowed = budgets.deltas_or(default_delta)
    over = np.array([group.delta for group in plan.groups])[assignment] > allowed
    if over.any():
        client = int(np.argmax(over))
        group = plan.groups[assignment[client]]
        raise PrivacyError(
            f"{group.name!r} has delta={delta_up(group.delta)}, more than the {allowance(float(allowed[client]))} that "
            f"client {budgets.label(client)!r} allows: state the delta that was agreed on, or make the plan again"
        )


def assign(plan: "Plan", budgets: Budgets) -> IntArray:
    """Each client's group under a plan; raises PrivacyError if a private plan exceeds some client's epsilon or own
    delta, or if people were counted in other groups."""
    if plan.grouping == "given":
        if budgets.groups is None:
            raise InputError(
                "the plan's groups were given by a column 'group', which these budgets lack: use the same file"
            )
        names = {group.name: index for index, group in enumerate(plan.groups)}
        unknown = sorted(set(budgets.groups) - set(names))
        if unknown:
            raise InputError(f"the plan has no group {unknown[0]!r}: make the plan again for these budgets")
        assignment = np.array([names[name] for name in budgets.groups], dtype=np.int64)
    elif plan.is_private:
        epsilons = np.array([group.epsilon for group in plan.groups])
        order = np.argsort(epsilons, kind="stable")
        position = np.searchsorted(epsilons[order], budgets.epsilons, side="right") - 1
        if (position < 0).any():
            strict = int(np.argmin(budgets.epsilons))
            raise PrivacyError(
                f"client {budgets.label(strict)!r} allows epsilon={allowance(float(budgets.epsilons[strict]))}, less "
                f"than every group of the plan: make the plan again for these budgets"
            )
        assignment = order[position].astype(np.int64)
    else:
        assignment = np.zeros(len(budgets), dtype=np.int64)
    if plan.is_private:
        _check_members(plan, budgets, assignment)
        _check_linked(plan, budgets, assignment)
    return assignment


def _check_members(plan: "Plan", budgets: Budgets, assignment: IntArray) -> None:
    epsilons = np.array([group.epsilon for group in plan.groups])
    deltas = np.array([group.delta for group in plan.groups])
    over = (epsilons[assignment] > budgets.epsilons) | (deltas[assignment] > budgets.deltas_or(np.inf))
    if over.any():
        client = int(np.argmax(over))
        group = plan.groups[assignment[client]]
        raise PrivacyError(
            f"{group.name!r} spends up to ({promise(group.epsilon)}, {delta_up(group.delta)}), more than client "
            f"{budgets.label(client)!r} allows: make the plan again for these budgets"
        )
    sizes = np.bincount(assignment, minlength=len(plan.groups))
    for group, size in zip(plan.groups, sizes, strict=True):
        if size != group.num_clients:
            raise PrivacyError(
                f"{group.name!r} was planned for {group.num_clients} clients, these budgets put {size} in it: "
                f"make the plan again for these budgets"
            )


def _check_linked(plan: "Plan", budgets: Budgets, assignment: IntArray) -> None:
    """People in several clients were counted by group: every client must still be in its group."""
    if not plan.linked:
        return
    if budgets.clients is None:
        raise InputError("expected budgets that name their clients, since the plan has linked clients, got counts only")
    if assignment_digest(budgets.clients, assignment) != plan.assignment_digest:
        raise PrivacyError(
            "the plan counts linked clients by group, and these budgets, or names, put clients into other groups than "
            "it was made for, so its person-level epsilon may be false: make the plan again for these budgets"
        )
