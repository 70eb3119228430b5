"""What is promised, spent and left: for each group and adversary, now and by round, and for each client.

Place: reads the ledger's state, for the command line and exports. Costs are computed once for each class and delta, so
a million clients take as long as their few classes.

Guarantees (tests of the same name):
  status_states_both_adversaries   release epsilons over all runs, and the server's by participations.
  by_round_ends_at_now             the history's last epsilon is the one that the status states.
  every_client_is_listed           with its own spend at its own delta.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.ledger.admission import rounds_left
from gdpfed.ledger.chain import Row, unpack_places
from gdpfed.ledger.population import IntArray, Population
from gdpfed.ledger.spend import History, merged, spent
from gdpfed.ledger.state import LedgerState, Run
from gdpfed.privacy.accountant import gaussian_epsilon

__all__ = ["ChargedRound", "ClientStatus", "GroupStatus", "client_statuses", "run_history", "run_status"]

# More deltas in one class than this are all judged at the smallest: an upper bound.
_MOST_DELTAS = 16


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """A group of a run. Epsilons are its worst client's, over all runs, at that client's delta.

    ``promised`` is what is spent and what open runs still hold; ``lost`` rounds were charged and never published.
    """

    run: str
    group: str
    is_open: bool
    num_clients: int
    epsilon: float
    delta: float
    promised: float
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
    found = (0.0, 0.0, 0.0, 0.0)
    share = -1.0
    for number in numbers:
        history, promised = state.history(population, number), state.promised(population, number)
        for epsilon, delta in population.strictest_of(number):
            most = spent(promised, delta=delta)
            now = most if promised == history else spent(history, delta=delta)
            if most / epsilon > share:
                share, found = most / epsilon, (epsilon, delta, most, now)
    return found


def _server(precisions: NDArray[np.float64], delta: float) -> tuple[float, float, float]:
    """Mean, 99th percentile and largest epsilon against the server."""
    if not len(precisions) or delta == 0:
        return 0.0, 0.0, 0.0
    points = (float(precisions.mean()), float(np.quantile(precisions, 0.99, method="higher")), float(precisions.max()))
    mean, p99, most = (gaussian_epsilon(noise_multiplier=1.0, num_releases=seen, delta=delta) for seen in points)
    return mean, p99, most


def run_status(state: LedgerState, run: Run) -> list[GroupStatus]:
    """Every group of a run, as it stands now."""
    left = rounds_left(state, run)
    found = []
    for number, group in enumerate(run.plan.groups):
        members = np.flatnonzero((run.assignment == number) & ~run.population.has_left)
        epsilon, delta, promised, now = _worst(state, run.population, run.population.classes_in(run.name, number))
        mean, p99, most = _server(run.population.precision[members], delta)
        states = [a.state for (_, place), attempts in run.attempts.items() if place == number for a in attempts]
        found.append(
            GroupStatus(
                run=run.name,
                group=group.name,
                is_open=run.is_open,
                num_clients=len(members),
                epsilon=epsilon,
                delta=delta,
                promised=promised,
                spent_release=now,
                spent_server_mean=mean,
                spent_server_p99=p99,
                spent_server_max=most,
                most_participations=int(run.participations[members].max(initial=0)),
                max_participations=run.plan.max_participations,
                num_rounds=run.num_rounds,
                charged=run.charged[number],
                published=states.count("published"),
                lost=states.count("charged"),
                rounds_left=left[group.name],
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class ChargedRound:
    """One attempt, and what its group's worst client had spent once it was charged (None: not computed)."""

    run: str
    group: str
    round_number: int
    attempt: int
    state: str
    content_hash: str | None
    delta: float
    epsilon_release: float | None = None
    epsilon_server: float | None = None


def run_history(state: LedgerState, run: Run, rows: Sequence[Row], *, points: int = 10) -> list[ChargedRound]:
    """Every attempt of a run, group by group, with epsilons at up to ``points`` rounds, the last among them.

    ``rows`` are the ledger's, for who took part when. Other runs on the same clients count as they stand now.
    """
    seen = _seen_then(run, rows, points)
    found = []
    for number, group in enumerate(run.plan.groups):
        numbers = run.population.classes_in(run.name, number)
        deltas = [delta for place in numbers for _, delta in run.population.strictest_of(place)]
        done, stops = 0, _stops(run.charged[number], points)
        for (round_number, place), attempts in sorted(run.attempts.items()):
            for attempt in attempts if place == number else ():
                is_charged = attempt.state in ("charged", "published")
                done += is_charged
                costs: dict[str, float] = {}
                if is_charged and done in stops:
                    most = seen[round_number, attempt.attempt, group.name]
                    costs["epsilon_release"] = _epsilon_then(state, run, number, numbers, done)
                    costs["epsilon_server"] = max(
                        gaussian_epsilon(noise_multiplier=1.0, num_releases=most, delta=delta) for delta in deltas
                    )
                found.append(
                    ChargedRound(
                        run=run.name,
                        group=group.name,
                        round_number=round_number,
                        attempt=attempt.attempt,
                        state=attempt.state,
                        content_hash=attempt.content_hash,
                        delta=min(deltas, default=group.delta),
                        **costs,
                    )
                )
    return found


def _stops(total: int, points: int) -> set[int]:
    """The counts of charges at which epsilons are computed."""
    return {round(total * (step + 1) / points) for step in range(points)}


def _seen_then(run: Run, rows: Sequence[Row], points: int) -> dict[tuple[int, int, str], float]:
    """What the server had seen of a group's most seen client after each charge, as `Population.precision`."""
    if not points:
        return {}
    seen: NDArray[np.float64] = np.zeros(len(run.population))
    found: dict[tuple[int, int, str], float] = {}
    charges = [row.content for row in rows if row.kind == "charge"]
    own = [content for content in charges if content["run"] == run.name]
    for content in own:
        place = run.group_number(content["group"])
        seen[unpack_places(content["clients"])] -= run.plan.groups[place].noise_multiplier ** -2.0
    # Less this run's: what other runs have shown of each client.
    seen += run.population.precision
    members = [np.flatnonzero(run.assignment == place) for place in range(len(run.plan.groups))]
    for content in own:
        place = run.group_number(content["group"])
        seen[unpack_places(content["clients"])] += run.plan.groups[place].noise_multiplier ** -2.0
        most = float(np.maximum(seen[members[place]], 0.0).max(initial=0.0))
        found[content["round"], content["attempt"], content["group"]] = most
    return found


def _epsilon_then(state: LedgerState, run: Run, group: int, numbers: list[int], charged: int) -> float:
    """The largest spend of a group's classes when the group had been charged so often."""
    later = run.charged[group] - charged
    return max((_without(state, run, group, number, later) for number in numbers), default=0.0)


def _without(state: LedgerState, run: Run, group: int, number: int, later: int) -> float:
    history = _minus(state.history(run.population, number), run, group, later)
    return max(spent(history, delta=delta) for _, delta in run.population.strictest_of(number))


def _minus(history: History, run: Run, group: int, count: int) -> History:
    planned = run.plan.groups[group]
    place = (planned.noise_multiplier, planned.sampling_rate)
    kept: History = tuple(e for e in history if (e.noise_multiplier, e.sampling_rate) != place)
    rounds = sum(e.num_rounds for e in history if (e.noise_multiplier, e.sampling_rate) == place)
    return merged([*kept, *run.event(group, max(rounds - count, 0))])


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """One client: budget and spend over all runs."""

    client: str
    epsilon: float
    delta: float
    spent_release: float
    spent_server: float
    participations: int
    has_left: bool


def client_statuses(
    state: LedgerState, population: Population, places: IntArray | None = None
) -> Iterator[ClientStatus]:
    """Clients in their order, all or those at ``places``."""
    chosen = np.arange(len(population)) if places is None else places
    release, server = _release_spends(state, population, chosen), _server_spends(population, chosen)
    counts = np.zeros(len(population), dtype=np.int64)
    for run in state.runs.values():
        if run.population is population:
            counts += run.participations
    for place, cost, seen in zip(chosen.tolist(), release, server, strict=True):
        yield ClientStatus(
            client=population.label(place),
            epsilon=float(population.epsilons[place]),
            delta=float(population.deltas[place]),
            spent_release=float(cost),
            spent_server=float(seen),
            participations=int(counts[place]),
            has_left=bool(population.has_left[place]),
        )


def _release_spends(state: LedgerState, population: Population, places: IntArray) -> NDArray[np.float64]:
    costs = np.zeros(len(places))
    numbers = population.class_of[places]
    for number in np.unique(numbers):
        chosen = np.flatnonzero(numbers == number)
        deltas, inverse = np.unique(population.deltas[places[chosen]], return_inverse=True)
        history = state.history(population, int(number))
        if len(deltas) > _MOST_DELTAS:
            costs[chosen] = spent(history, delta=float(deltas[0]))
        else:
            costs[chosen] = np.array([spent(history, delta=float(delta)) for delta in deltas])[inverse]
    return costs


def _server_spends(population: Population, places: IntArray) -> NDArray[np.float64]:
    pairs = np.stack([population.precision[places], population.deltas[places]], axis=1)
    found, inverse = np.unique(pairs, axis=0, return_inverse=True)
    costs: list[Any] = [
        gaussian_epsilon(noise_multiplier=1.0, num_releases=float(seen), delta=float(delta)) for seen, delta in found
    ]
    return np.array(costs)[inverse.reshape(-1)]
