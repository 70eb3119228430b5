"""One client, one budget: a name stands in one population of a ledger.

Place: between the ledger's state and its writers. A budget holds over all runs of a population; a client of two
populations would have two. Names are compared. Where a population has no names there is nothing to compare: whoever
adds it, or another beside it, must say that these are other people.

A ledger of an earlier version may hold a name twice. It can be read; a population is not charged while such a client
is in it. Settled is who has left all populations but one, was never charged in those, and allows no less there: then
what the one has charged is all that the client spent.

Guarantees (tests of the same name):
  a_client_has_one_budget          a name that another population has, or had until it left, is refused.
  without_names_somebody_says_so   a second population that cannot be compared needs the word that it is other people.
  a_doubled_client_stops_its_populations   nothing of them is let in or charged until it is settled.
  a_doubled_client_is_named        by `verify`, with what it has spent in all populations together.

Does not: know that two names are one person, nor that clients without names are who they are said to be.
"""

import itertools
from collections.abc import Sequence

from gdpfed.errors import PrivacyError
from gdpfed.ledger.population import Population
from gdpfed.ledger.spend import History, spent
from gdpfed.ledger.state import LedgerState
from gdpfed.privacy.rounding import allowance, delta_up, rounded_up

__all__ = ["check_new_clients", "check_no_doubled", "check_single", "not_compared", "unsettled"]

# So many clients are named in a message.
_MOST_NAMED = 20


def check_new_clients(
    state: LedgerState, population: str, clients: Sequence[str] | None, *, other_people: bool
) -> None:
    """Raises PrivacyError if one of the clients may be in another population of the ledger already.

    ``other_people``: somebody said that nobody is; it counts only where there are no names to compare.
    """
    for label, other in state.shared(clients or (), population=population):
        raise PrivacyError(
            f"client {label!r} is in population {other!r} of this ledger (who has left counts too: what it spent "
            f"stands): in {population!r} it would have a second budget; leave it out, and use it in {other!r}"
        )
    silent = [one.name for one in state.populations.values() if clients is None or one.labels is None]
    others = [name for name in silent if name != population]
    if others and not other_people:
        raise PrivacyError(
            f"population {population!r} and {_listed(others)} cannot be compared, because not all have names: whoever "
            f"is in both would have two budgets. Give all clients names, or say with other_people that nobody is"
        )


def unsettled(state: LedgerState) -> dict[str, tuple[str, ...]]:
    """Clients with more than one budget that still matters: names, and the populations that hold them."""
    if state.unsettled is None:
        state.unsettled = {
            label: names for label, names in state.doubled.items() if not _is_settled(state, label, names)
        }
    return state.unsettled


def _standings(state: LedgerState, label: str, names: Sequence[str]) -> list[tuple[float, float, History, bool]]:
    """Of one client in each of these populations: epsilon, delta, what it was charged, and whether it has left."""
    at = [(population, population.index(label)) for population in map(state.population, names)]
    return [
        (float(one.epsilons[i]), float(one.deltas[i]), state.history(one, int(one.class_of[i])), bool(one.has_left[i]))
        for one, i in at
    ]


def _is_settled(state: LedgerState, label: str, names: Sequence[str]) -> bool:
    standings = _standings(state, label, names)
    active = [(epsilon, delta) for epsilon, delta, history, has_left in standings if history or not has_left]
    return len(active) <= 1 and all(
        epsilon <= other_epsilon and delta <= other_delta
        for epsilon, delta in active
        for other_epsilon, other_delta, _, _ in standings
    )


def check_single(state: LedgerState, population: Population) -> None:
    """Raises PrivacyError while somebody in the population has another budget in another one."""
    if not state.doubled:
        return
    here = [
        label
        for label, names in unsettled(state).items()
        if population.name in names and not population.has_left[population.index(label)]
    ]
    if here:
        others = [name for name in unsettled(state)[here[0]] if name != population.name]
        raise PrivacyError(
            f"client {here[0]!r}{_more(len(here) - 1)} of population {population.name!r} has a second budget in "
            f"{_listed(others)}: nothing is charged for {population.name!r} meanwhile. Where it was never charged, let "
            f"it leave (gdpfed ledger leave), and tighten its budget to the lowest of them; if it was charged in "
            f"several, let it leave {population.name!r}. gdpfed ledger verify names all such clients"
        )


def check_no_doubled(state: LedgerState) -> None:
    """Raises PrivacyError with the clients that have more than one budget, and what the first has spent in all."""
    clients = unsettled(state)
    if not clients:
        return
    first, names = next(iter(clients.items()))
    epsilons, deltas, histories, _ = zip(*_standings(state, first, names), strict=True)
    epsilon, delta = min(epsilons), min(deltas)
    cost = spent(itertools.chain(*histories), delta=delta)
    named = list(clients)[:_MOST_NAMED]
    raise PrivacyError(
        f"expected every client in one population, got {len(clients)} in several: {_listed(named)}"
        f"{_more(len(clients) - len(named))}. {first!r} is in {_listed(names)} and spent epsilon {rounded_up(cost)} in "
        f"all at delta {delta_up(delta)}, of {allowance(epsilon)} that it allowed. Let such clients leave (gdpfed "
        f"ledger leave); what they spent stands"
    )


def not_compared(state: LedgerState) -> list[str]:
    """Populations that were added without a word on whether they are other people, where names could not tell."""
    populations = list(state.populations.values())
    return [
        population.name
        for number, population in enumerate(populations)
        if not population.are_other_people
        and any(earlier.labels is None or population.labels is None for earlier in populations[:number])
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""
