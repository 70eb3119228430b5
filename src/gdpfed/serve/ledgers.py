"""What a ledger says: populations, how much of which budgets is left, and what the next plan could be.

Place: beside `work`, as jobs in a process of its own: a ledger is read whole, and what is left is computed. Read only.

Guarantees (tests of the same name):
  names_only_when_asked   the ledger's page counts clients; a name is in an answer only where names were asked for.
"""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from gdpfed.config import option_name
from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.population import Population
from gdpfed.ledger.replan import rest_of
from gdpfed.ledger.status import ClientStatus, GroupStatus, client_statuses, run_status, spent_most
from gdpfed.planning.plan_file import plan_as_json
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.rounding import allowance, delta_up, rounded_up
from gdpfed.report.tables import Table
from gdpfed.serve.pages import rendered
from gdpfed.serve.processes import Send
from gdpfed.serve.states import field_of
from gdpfed.serve.work import planned_data, shown

__all__ = ["LedgerAsked", "clients_job", "ledger_job", "rest_job"]

T = TypeVar("T")

_MOST_NAMES = 200


@dataclass(frozen=True, kw_only=True)
class LedgerAsked:
    """A ledger; of which population, what to plan for it, and which of its clients to name."""

    path: Path
    population: str | None = None
    settings: PlanSettings = field(default_factory=PlanSettings)
    clients: tuple[str, ...] = ()
    most: int = 0


_GROUPS: dict[str, Callable[[GroupStatus], str]] = {
    "run": lambda part: part.run if part.is_open else f"{part.run} (closed)",
    "group": lambda part: part.group,
    "clients": lambda part: f"{part.num_clients:,}",
    "budget ε": lambda part: allowance(part.epsilon),
    "promised ε": lambda part: rounded_up(part.promised),
    "spent ε, models": lambda part: rounded_up(part.spent_release),
    "server ε, 99 in 100": lambda part: rounded_up(part.spent_server_p99, 2),
    "server ε, at most": lambda part: rounded_up(part.spent_server_max, 2),
    "left ε": lambda part: allowance(part.left, 4),
    "rounds charged": lambda part: f"{part.charged} of {part.num_rounds}",
    "lost": lambda part: str(part.lost),
}
_CLIENTS: dict[str, Callable[[ClientStatus], str]] = {
    "client": lambda one: one.client + (" (left)" if one.has_left else ""),
    "budget ε": lambda one: allowance(one.epsilon),
    "delta": lambda one: delta_up(one.delta, 2),
    "spent ε, models": lambda one: rounded_up(one.spent_release),
    "server ε": lambda one: rounded_up(one.spent_server),
    "left ε": lambda one: allowance(one.left, 4),
    "participations": lambda one: str(one.participations),
}


def _table(columns: dict[str, Callable[[T], str]], rows: Iterable[T]) -> Table:
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def _population(ledger: Ledger, name: str | None) -> Population:
    known = ledger.state.populations
    if not known:
        raise InputError("the ledger has no population yet: gdpfed ledger init makes one")
    return next(iter(known.values())) if name is None else ledger.state.population(name)


def ledger_job(asked: LedgerAsked, send: Send) -> None:
    """Populations, what of their budgets is left, and every run: no names."""
    ledger = Ledger.read(asked.path)
    state = ledger.state
    populations = []
    for number, people in enumerate(state.populations.values()):
        send({"done": number, "total": len(state.populations), "words": f"counting what is left in {people.name}"})
        there = np.flatnonzero(~people.has_left)
        shares = np.array([one.left / one.epsilon for one in client_statuses(state, people, there)])
        populations.append((people, shares))
    parts = [part for run in state.runs.values() for part in run_status(state, run)]
    columns, rows = _table(_GROUPS, parts)
    html = rendered("ledger_answer.html", populations=populations, parts=parts, columns=columns, rows=rows)
    send({"html": html})


def clients_job(asked: LedgerAsked, send: Send) -> None:
    """Single clients, by name, because somebody asked for them."""
    ledger = Ledger.read(asked.path)
    people = _population(ledger, asked.population)
    most = min(max(asked.most, 0), _MOST_NAMES)
    indices = people.indices(list(asked.clients)) if asked.clients else spent_most(ledger.state, people, most)
    listed = list(client_statuses(ledger.state, people, indices))
    columns, rows = _table(_CLIENTS, listed)
    send({"html": rendered("clients_answer.html", people=people, columns=columns, rows=rows)})


def rest_job(asked: LedgerAsked, send: Send) -> None:
    """A plan for what is left, as `gdpfed ledger plan`."""
    ledger = Ledger.read(asked.path)
    people = _population(ledger, asked.population)
    rest = rest_of(ledger.state, people, asked.settings)
    words = ["gdpfed", "ledger", "plan", str(asked.path), "--population", people.name]
    for name in sorted(asked.settings.changed()):
        words += [option_name(field_of(name)), str(getattr(asked.settings, name))]
    command = shlex.join([*words, "--out", "plan.toml", "--budgets", "budgets.csv"])
    html = shown("rest_answer.html", planned_data(None, rest.plan), rest=rest, command=command)
    send({"plan": plan_as_json(rest.plan) | {"left_out": rest.left_out}, "html": html, "command": command})
