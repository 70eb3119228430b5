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

from collections.abc import Sequence

from gdpfed.errors import PrivacyError
from gdpfed.ledger.population import Population
from gdpfed.ledger.spend import History, merged, spent
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
    found = next(state.shared(clients or (), population=population), None)
    if found is not None:
        label, other = found
        raise PrivacyError(
            f"client {label!r} is in population {other!r} of this ledger (who has left counts too: what it spent "
            f"stands): in {population!r} it would have a second budget; leave it out, and use it in {other!r}"
        )
    silent = [one.name for one in state.populations.values() if clients is None or one.labels is None]
    others = [name for name in silent if name != population]
    if others and not other_people:
        raise PrivacyError(
            f"population {population!r} and {', '.join(map(repr, others))} cannot be compared, because not all have "
            f"names: whoever is in both would have two budgets. Give all clients names, or, if nobody is in both, say "
            f"so: --other-people (other_people=True)"
        )


def unsettled(state: LedgerState) -> dict[str, tuple[str, ...]]:
    """Clients with more than one budget that still matters: names, and the populations that hold them."""
    if state.unsettled is None:
        state.unsettled = {
            label: names for label, names in state.doubled.items() if not _is_settled(state, label, names)
        }
    return state.unsettled


def _standings(state: LedgerState, label: str, names: Sequence[str]) -> list[tuple[Population, int]]:
    populations = [state.populations[name] for name in names]
    return [(population, population.places_by_label[label]) for population in populations]


def _history(state: LedgerState, population: Population, place: int) -> History:
    return state.history(population, int(population.class_of[place]))


def _is_settled(state: LedgerState, label: str, names: Sequence[str]) -> bool:
    all_of_it = _standings(state, label, names)
    active = [(one, place) for one, place in all_of_it if not one.has_left[place] or _history(state, one, place)]
    return len(active) <= 1 and all(
        one.epsilons[place] <= other.epsilons[there] and one.deltas[place] <= other.deltas[there]
        for one, place in active
        for other, there in all_of_it
    )


def check_single(state: LedgerState, population: Population) -> None:
    """Raises PrivacyError while somebody in the population has another budget in another one."""
    if not state.doubled:
        return
    here = [
        label
        for label, names in unsettled(state).items()
        if population.name in names and not population.has_left[population.places_by_label[label]]
    ]
    if here:
        others = [name for name in unsettled(state)[here[0]] if name != population.name]
        raise PrivacyError(
            f"client {here[0]!r}{_more(len(here) - 1)} of population {population.name!r} has a second budget in "
            f"{', '.join(map(repr, others))}: nothing is charged for {population.name!r} meanwhile. Where it was never "
            f"charged, let it leave (gdpfed ledger leave LEDGER --population NAME CLIENT...), and tighten its budget "
            f"to the lowest of them; if it was charged in several, let it leave {population.name!r}. gdpfed ledger "
            f"verify names all such clients"
        )


def check_no_doubled(state: LedgerState) -> None:
    """Raises PrivacyError with the clients that have more than one budget, and what the first has spent in all."""
    found = unsettled(state)
    if not found:
        return
    first, names = next(iter(found.items()))
    standings = _standings(state, first, names)
    delta = min(float(population.deltas[place]) for population, place in standings)
    epsilon = min(float(population.epsilons[place]) for population, place in standings)
    cost = spent(merged(e for one, place in standings for e in _history(state, one, place)), delta=delta)
    named = list(found)[:_MOST_NAMED]
    raise PrivacyError(
        f"expected every client in one population, got {len(found)} in several: "
        f"{', '.join(map(repr, named))}{_more(len(found) - len(named))}. {first!r} is in "
        f"{', '.join(map(repr, names))} and spent epsilon {rounded_up(cost)} in all at delta {delta_up(delta)}, of "
        f"{allowance(epsilon)} that it allowed. Let such clients leave (gdpfed ledger leave); what they spent stands"
    )


def not_compared(state: LedgerState) -> list[str]:
    """Populations that were added without a word on whether they are other people, where names could not tell."""
    seen: list[Population] = []
    found = []
    for population in state.populations.values():
        silent = any(one.labels is None or population.labels is None for one in seen)
        if silent and not population.are_other_people:
            found.append(population.name)
        seen.append(population)
    return found


def _more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""
