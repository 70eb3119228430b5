"""What is promised, spent and left: for each group and adversary, now and by round, and for each client.

Place: reads the ledger's state, for the command line and exports. Costs are computed once for each class and delta, so
a million clients take as long as their few classes.

Guarantees (tests of the same name):
  status_states_both_adversaries   release epsilons over all runs, and the server's by participations.
  by_round_ends_at_now             the last run's last epsilon in the history is the one that the status states.
  history_counts_what_was_charged_by_then   of all runs, and nothing that came later.
  left_is_what_a_further_run_may_cost   such a run is let in, and one that costs 2 % more is not.
  every_client_is_listed           with its own spend at its own delta.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdpfed.ledger.admission import rounds_left
from gdpfed.ledger.chain import Row, unpack_sample
from gdpfed.ledger.charges import Attempt
from gdpfed.ledger.population import IntArray, Population, grouped
from gdpfed.ledger.replan import epsilon_left, remaining_epsilon
from gdpfed.ledger.spend import History, server_spent, spent
from gdpfed.ledger.state import Counts, LedgerState, Run

__all__ = [
    "ChargedRound", "ClientStatus", "GroupStatus", "client_statuses", "run_history", "run_status", "spent_most",
]  # fmt: skip

# More deltas in one class than this are all judged at the smallest: an upper bound.
_MOST_DELTAS = 16


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """A group of a run. Epsilons are its worst client's, over all runs, at that client's delta.

    ``promised`` is what is spent and what open runs still hold; ``left`` is what a further run of this group's rate and
    rounds could cost everyone in it (more than the budget less what is promised: losses do not add up). ``lost`` rounds
    were charged and never published.
    """

    run: str
    group: str
    is_open: bool
    num_clients: int
    epsilon: float
    delta: float
    promised: float
    left: float
    spent_release: float
    spent_server_mean: float
    spent_server_p99: float
    spent_server_max: float
    most_participations: int
    max_participations: int | None
    num_rounds: int
    charged: int
    published: int
    lost: int
    rounds_left: int


def _worst(state: LedgerState, population: Population, numbers: list[int]) -> tuple[float, float, float, float]:
    """Budget epsilon, delta, promised and spent, where the most of a budget is promised."""
    standings = []
    for number in numbers:
        history, promised = state.history(population, number), state.promised(population, number)
        for epsilon, delta in population.strictest_of(number):
            standings.append((epsilon, delta, spent(promised, delta=delta), spent(history, delta=delta)))
    return max(standings, key=lambda one: one[2] / one[0], default=(0.0, 0.0, 0.0, 0.0))


def _server(precisions: NDArray[np.float64], delta: float, hidden: History) -> tuple[float, float, float]:
    """Mean, 99th percentile and largest epsilon against the server; ``hidden`` as for `server_spent`."""
    if not len(precisions) or delta == 0:
        return 0.0, 0.0, 0.0
    points = (float(precisions.mean()), float(np.quantile(precisions, 0.99, method="higher")), float(precisions.max()))
    mean, p99, most = (server_spent(seen, delta=delta, hidden=hidden) for seen in points)
    return mean, p99, most


def _left(state: LedgerState, run: Run, group: int, numbers: list[int]) -> float:
    """What a further run like this could cost every client of a group."""
    like, people = run.plan.mechanism(run.plan.groups[group]), run.population
    return min(
        (
            remaining_epsilon(state.promised(people, number), people.strictest_of(number), like=like)
            for number in numbers
        ),
        default=0.0,
    )


def _hidden(
    state: LedgerState, population: Population, numbers: list[int], delta: float, *, then: Counts | None = None
) -> History:
    """The events in rotations of the class to which they cost most."""
    histories = [state.history(population, number, then=then, in_rotations=True) for number in numbers]
    return max(histories, key=lambda events: spent(events, delta=delta), default=()) if delta else ()


def run_status(state: LedgerState, run: Run) -> list[GroupStatus]:
    """Every group of a run, as it stands now."""
    left = rounds_left(state, run)
    statuses = []
    for number, group in enumerate(run.plan.groups):
        members = np.flatnonzero((run.assignment == number) & ~run.population.has_left)
        classes = run.population.classes_in(run.name, number)
        epsilon, delta, promised, now = _worst(state, run.population, classes)
        hidden = _hidden(state, run.population, classes, delta)
        mean, p99, most = _server(run.population.precision[members], delta, hidden)
        statuses.append(
            GroupStatus(
                run=run.name,
                group=group.name,
                is_open=run.is_open,
                num_clients=len(members),
                epsilon=epsilon,
                delta=delta,
                promised=promised,
                left=_left(state, run, number, classes),
                spent_release=now,
                spent_server_mean=mean,
                spent_server_p99=p99,
                spent_server_max=most,
                most_participations=int(run.participations[members].max(initial=0)),
                max_participations=run.plan.participation_cap,
                num_rounds=run.num_releases,
                charged=run.charged[number],
                published=run.count("published", number),
                lost=run.count("charged", number),
                rounds_left=left[group.name],
            )
        )
    return statuses


@dataclass(frozen=True, kw_only=True)
class ChargedRound(Attempt):
    """One attempt, and what its group's worst client had spent once it was charged (None: not computed)."""

    delta: float
    epsilon_release: float | None = None
    epsilon_server: float | None = None


def run_history(state: LedgerState, run: Run, rows: Sequence[Row], *, points: int = 10) -> list[ChargedRound]:
    """Every attempt of a run, group by group, with epsilons at up to ``points`` rounds, the last among them.

    ``rows`` are the ledger's: they tell what had been charged by then, and to whom. Of budgets that were tightened
    since, the delta is today's.
    """
    seen = _seen_then(state, run, rows) if points else {}
    history = []
    for number, group in enumerate(run.plan.groups):
        classes = run.population.classes_in(run.name, number)
        budgets = itertools.chain(*map(run.population.strictest_of, classes))
        delta = min((delta for _, delta in budgets), default=group.delta)
        # The counts of charges at which epsilons are computed.
        attempts = sum(attempt.is_charged for attempt in run.all_attempts(number))
        stops = {round(attempts * (step + 1) / points) for step in range(points)}
        charged = 0
        for attempt in sorted(run.all_attempts(number), key=lambda attempt: attempt.round_number):
            release = server = None
            charged += attempt.is_charged
            if attempt.is_charged and charged in stops:
                precision, then = seen[attempt.round_number, attempt.attempt, group.name]
                release = state.most_spent(run, number, then=then)
                hidden = _hidden(state, run.population, classes, delta, then=then)
                server = server_spent(precision, delta=delta, hidden=hidden)
            history.append(ChargedRound(**vars(attempt), delta=delta, epsilon_release=release, epsilon_server=server))
    return history


def _seen_then(
    state: LedgerState, run: Run, rows: Sequence[Row]
) -> dict[tuple[int, int, str], tuple[float, dict[tuple[str, int], int]]]:
    """After each charge of a run: what the server had seen of its group's most seen client, as `Population.precision`,
    and how often the groups of all runs of its population had been charged."""
    runs = {one.name: one for one in state.runs_of(run.population)}
    counts = {(one.name, number): 0 for one in runs.values() for number in range(len(one.plan.groups))}
    asks = {name: np.zeros(len(run.population), dtype=np.int64) for name, one in runs.items() if one.plan.is_rotation}
    seen: NDArray[np.float64] = np.zeros(len(run.population))
    most: dict[tuple[int, int, str], tuple[float, dict[tuple[str, int], int]]] = {}
    for row in rows:
        if row.kind != "charge" or (content := row.content)["run"] not in runs:
            continue
        name, clients = content["run"], unpack_sample(content["clients"])
        number = runs[name].group_number(content["group"])
        if name in asks:
            asks[name][clients] += 1
            counts[name, number] = max(counts[name, number], int(asks[name][clients].max(initial=0)))
        else:
            counts[name, number] += 1
            seen[clients] += runs[name].plan.groups[number].noise_multiplier ** -2.0
        if name == run.name:
            precision = float(seen[run.assignment == number].max(initial=0.0))
            most[content["round"], content["attempt"], content["group"]] = precision, dict(counts)
    return most


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """One client: budget and spend over all runs; ``left`` as for a group, by the client's last run."""

    client: str
    epsilon: float
    delta: float
    left: float
    spent_release: float
    spent_server: float
    participations: int
    has_left: bool


def client_statuses(
    state: LedgerState, population: Population, clients: IntArray | None = None
) -> Iterator[ClientStatus]:
    """Clients in their order, all or those with these indices."""
    chosen = np.arange(len(population)) if clients is None else clients
    server_cost = functools.cache(server_spent)
    hidden = functools.cache(lambda number: state.history(population, number, in_rotations=True))
    counts = sum((run.participations for run in state.runs_of(population)), np.zeros(len(population), dtype=np.int64))
    costs, left = _release_spends(state, population, chosen), _lefts(state, population, chosen)
    for index, cost, rest in zip(chosen.tolist(), costs.tolist(), left.tolist(), strict=True):
        delta = float(population.deltas[index])
        yield ClientStatus(
            client=population.label(index),
            epsilon=float(population.epsilons[index]),
            delta=delta,
            left=rest,
            spent_release=cost,
            spent_server=server_cost(
                float(population.precision[index]), delta=delta, hidden=hidden(int(population.class_of[index]))
            ),
            participations=int(counts[index]),
            has_left=bool(population.has_left[index]),
        )


def spent_most(state: LedgerState, population: Population, count: int) -> IntArray:
    """So many clients that have spent the largest parts of their budgets, those first."""
    shares = _release_spends(state, population, np.arange(len(population))) / population.epsilons
    return np.argsort(-shares, kind="stable")[: max(count, 0)]


def _lefts(state: LedgerState, population: Population, clients: IntArray) -> NDArray[np.float64]:
    """What a further run like its last could cost each client."""
    left = np.where(population.has_left[clients], 0.0, population.epsilons[clients])
    for number, chosen in grouped(population.class_of[clients]):
        stays = population.classes[number]
        if stays:
            plan = state.runs[stays[-1].run].plan
            like = plan.mechanism(plan.groups[stays[-1].group])
            left[chosen] = epsilon_left(state, population, clients[chosen], like=like)
    return left


def _release_spends(state: LedgerState, population: Population, clients: IntArray) -> NDArray[np.float64]:
    costs = np.zeros(len(clients))
    for number, chosen in grouped(population.class_of[clients]):
        deltas, inverse = np.unique(population.deltas[clients[chosen]], return_inverse=True)
        history = state.history(population, number)
        if len(deltas) > _MOST_DELTAS:
            costs[chosen] = spent(history, delta=float(deltas[0]))
        else:
            costs[chosen] = np.array([spent(history, delta=float(delta)) for delta in deltas])[inverse]
    return costs
