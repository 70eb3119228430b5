"""Who may be charged: budgets against all that a client has spent and all that open runs hold for it.

Place: between the ledger's state and its writers. A run is let in with all its rounds or not at all; from then on it
holds them, so that charging one of them needs no computation, however many clients there are. Beyond them (a round that
was charged and lost must be paid again) every class is judged before each charge.

Guarantees (tests of the same name):
  the_fourth_run_is_refused       over consecutive runs nobody's epsilon exceeds its budget; a run that would is refused
                                  before its first round, with the number of rounds that would fit.
  open_runs_hold_their_rounds     two runs cannot be let in on the same budget.
  a_tightened_budget_stops_its_group   from the next round on, while other groups go on.
"""

import numpy as np
from numpy.typing import NDArray

from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.doubled import check_single
from gdpfed.ledger.population import Population, grouped
from gdpfed.ledger.spend import fits, rounds_that_fit, spent, strictest
from gdpfed.ledger.state import LedgerState, Run
from gdpfed.planning.plan import Plan
from gdpfed.privacy.rounding import allowance, delta_up, rounded_up

__all__ = ["check_admission", "check_charge", "check_extension", "rounds_left", "what_is_held"]


def check_admission(
    state: LedgerState, population: Population, plan: Plan, assignment: NDArray[np.int16], *, run: str
) -> None:
    """Raises ExhaustedError unless all rounds of the plan keep all budgets, after all that is spent and promised."""
    check_single(state, population)
    entering = np.flatnonzero(assignment >= 0)
    pairs = population.class_of[entering].astype(np.int64) * len(plan.groups) + assignment[entering]
    allowed, worst = plan.num_releases, ""
    # Clients of one class that would be in one group are judged together.
    for pair, members in grouped(pairs):
        number, group = divmod(pair, len(plan.groups))
        history, clients = state.promised(population, number), entering[members]
        budgets = strictest(population.epsilons[clients], population.deltas[clients])
        mechanism = plan.mechanism(plan.groups[group])
        if fits([*history, mechanism], budgets):
            continue
        count = rounds_that_fit(history, mechanism, budgets=budgets, at_most=allowed)
        if not worst or count < allowed:
            epsilon, delta = budgets[0]
            allowed = count
            worst = (
                f"in {plan.groups[group].name!r}, client {population.label(int(clients[0]))!r} and its like have "
                f"epsilon {rounded_up(spent(history, delta=delta))} of {allowance(epsilon)} spent or promised (delta "
                f"{delta_up(delta)})"
            )
    if worst:
        reason = f"{worst}; {allowed} of {plan.num_releases} {'asks' if plan.is_rotation else 'rounds'} would fit"
        reason += f"{what_is_held(state, population)}; gdpfed ledger plan makes a plan for what is left"
        raise ExhaustedError(f"run {run!r} would exceed budgets before its end: {reason}", rounds_left=allowed)


def what_is_held(state: LedgerState, population: Population) -> str:
    """For a refusal: which open runs hold rounds, if any do."""
    holding = [one.name for one in state.runs_of(population) if any(map(one.held, range(len(one.charged))))]
    return f"; open runs hold rounds ({', '.join(holding)}): close those that are over" if holding else ""


def check_extension(state: LedgerState, run: Run, num_rounds: int) -> None:
    """Raises ExhaustedError unless so many rounds in all keep the budgets of the run's clients."""
    check_single(state, run.population)
    for group, charged in enumerate(run.charged):
        count = _fitting(state, run, group, at_most=max(num_rounds - charged, 0))
        if charged + count < num_rounds:
            raise ExhaustedError(
                f"run {run.name!r} cannot be extended to {num_rounds} rounds: {run.plan.groups[group].name!r} has "
                f"budget for {charged + count}; {count} more than the {charged} that were charged",
                rounds_left=count,
            )


def _fitting(state: LedgerState, run: Run, group: int, *, at_most: int) -> int:
    """How many more charges of a group keep all budgets."""
    most = at_most
    for number in run.population.classes_in(run.name, group):
        most = rounds_that_fit(
            state.promised(run.population, number, without=(run.name, group)),
            run.plan.mechanism(run.plan.groups[group]),
            budgets=run.population.strictest_of(number),
            at_most=most,
        )
    return most


def _limit(state: LedgerState, run: Run, group: int) -> int:
    """How many charges of a group, in all, keep every budget; computed where a budget or a member changed."""
    limit = run.limits[group]
    if limit is None:
        charged = run.charged[group]
        limit = charged + _fitting(state, run, group, at_most=max(run.num_releases - charged, 0))
        run.limits[group] = limit
    return limit


def _is_kept(state: LedgerState, run: Run, group: int) -> bool:
    """Whether what a group's clients have spent and are promised keeps their budgets as they are now."""
    population = run.population
    return all(
        fits(state.promised(population, number), population.strictest_of(number))
        for number in population.classes_in(run.name, group)
    )


def check_charge(state: LedgerState, run: Run, group: int, *, pending: int = 0) -> None:
    """Raises ExhaustedError unless one more charge, beyond ``pending`` reservations, keeps every budget."""
    check_single(state, run.population)
    limit = _limit(state, run, group)
    if run.charged[group] + pending < limit:
        return
    if run.plan.is_rotation and limit >= run.num_releases and _is_kept(state, run, group):
        # All asks are paid for, and nobody is asked more often (`state.check_participants`).
        return
    # Beyond what the run holds.
    needed = run.held(group) + 1
    if _fitting(state, run, group, at_most=needed) < needed:
        name = f"{run.plan.groups[group].name!r} of run {run.name!r}"
        charged = f"{run.charged[group]} rounds were charged, 0 more fit; it stops, or those clients leave"
        raise ExhaustedError(f"{name} has spent what its strictest client allows: {charged}", rounds_left=0)
    run.limits[group] = limit + 1


def rounds_left(state: LedgerState, run: Run) -> dict[str, int]:
    """For each group of an open run, how many of its remaining planned rounds it can still pay for."""
    return {
        group.name: max(_limit(state, run, number) - run.charged[number], 0) if run.is_open else 0
        for number, group in enumerate(run.plan.groups)
    }
