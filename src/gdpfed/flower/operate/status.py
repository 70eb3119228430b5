"""One look at a home: how a run stands, or what a node has spent.

Place: operations. `status_of` reads a server's or a node's home and returns a frozen value; the command line, the
metrics and pages are made from it. It only reads, and takes no lock that a running process needs.

A server's status names clients: it is for the operator, as the files are that it is read from. What one client's coin
was in a plan against the server stands in none of them, neither here nor on the node.

Guarantees (tests of the same name):
  a_status_says_how_a_run_stands   round, stage, who is online, lost or refused, spend by the ledger, seconds left.
  a_nodes_status_is_its_own_books  budget, spend and runs by its ledger, and its last refusal.
  looking_disturbs_nobody          neither a server that writes nor a node that answers.
  a_status_tells_no_coin           of a plan against the server: the same, however the coins fell.
"""

import dataclasses
import math
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.config import read_toml
from gdpfed.errors import InputError
from gdpfed.flower.node.node_home import NodeHome
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.operate.progress import GroupProgress, Loss, RunProgress, progress_in
from gdpfed.flower.server.events import EVENTS
from gdpfed.flower.server.server_home import ServerHome
from gdpfed.flower.shared.home_files import log_lines
from gdpfed.ledger.book import Ledger
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_from_toml
from gdpfed.runs.folder import is_finished

__all__ = ["GroupStatus", "JoinedStatus", "NodeStatus", "ServerStatus", "home_at", "status_of"]

_REFUSALS = ("refused ", "failed at ")


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """A group of the plan: its budget, what a client of it has spent at most over all runs, and its sums so far."""

    name: str
    clients: int
    epsilon: float
    delta: float
    spent: float | None
    released: int
    given_up: int
    tried_again: int


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """A server's home. ``state``: "no plan", "not started", "running", "stopped" or "finished".

    ``round_number`` counts from 1. ``waiting``: whom the stage still waits for, at most until ``until``. ``online`` is
    as of the last look. Times are seconds since 1970, ``seconds_left`` is a guess from the rounds so far.
    """

    home: str
    state: str
    run: str | None
    adversary: str | None
    round_number: int | None
    rounds_done: int
    num_rounds: int | None
    stage: str | None
    answered: tuple[str, ...]
    waiting: tuple[str, ...]
    until: float | None
    enrolled: tuple[str, ...]
    online: tuple[str, ...] | None
    num_lost: int
    num_refused: int
    losses: tuple[Loss, ...]
    unbound: dict[str, str]
    groups: tuple[GroupStatus, ...]
    accuracy: float | None
    seconds_a_round: float | None
    seconds_left: float | None
    stage_seconds: dict[str, tuple[int, float]]
    last_event: float | None

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON; an epsilon without bound is null."""
        return {"kind": "server", **_finite(dataclasses.asdict(self))}


@dataclass(frozen=True, kw_only=True)
class JoinedStatus:
    """A run that a node joined: what it was asked for and sent, of at most ``cap``. No coin is known."""

    name: str
    rounds: int
    asked: int
    sent: int
    cap: int
    is_rotation: bool


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A node's home: its owner's budget, what is spent or promised of it, and why it last refused.

    ``spent`` counts joined runs whole, against whoever sees the models; ``spent_server`` what the server was shown.
    """

    home: str
    name: str
    epsilon: float
    delta: float
    spent: float
    epsilon_server: float
    spent_server: float
    against: str
    enrolment: str | None
    clients: int | None
    runs: tuple[JoinedStatus, ...]
    last_refusal: str | None
    refused_at: str | None
    num_refusals: int

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"kind": "node", **_finite(dataclasses.asdict(self))}


def home_at(path: str | Path) -> ServerHome | NodeHome:
    """Whichever home is there."""
    path = Path(path)
    if (path / ServerHome.key_name).is_file():
        return ServerHome(path)
    if (path / NodeHome.key_name).is_file():
        return NodeHome(path)
    keys = f"{ServerHome.key_name} or {NodeHome.key_name}"
    raise InputError(f"expected a server's or a node's home (with {keys}), got {str(path)!r}: make one first")


def status_of(path: str | Path) -> ServerStatus | NodeStatus:
    """How a server's or a node's home stands."""
    home = home_at(path)
    return _server(home) if isinstance(home, ServerHome) else _node(home)


def _server(home: ServerHome) -> ServerStatus:
    enrolled = tuple(client.name for client in home.enrolment.clients) if home.enrolment_path.is_file() else ()
    run = home.run_name if home.run_name_path.is_file() else None
    # By its name the run knows the plan; to verify it takes seconds, and is done where it counts.
    plan = None if run is None else plan_from_toml(read_toml(home.plan_path), is_verified=True)
    seen = progress_in(home.path / EVENTS)
    progress = seen if run is not None and seen.run == run else RunProgress()
    state = _state(home, run, progress)
    is_live = state == "running"
    pace = statistics.median(progress.round_seconds[-5:]) if progress.round_seconds else None
    left = None if plan is None or pace is None or not is_live else pace * (plan.num_rounds - progress.rounds_done)
    if left is not None and progress.begun is not None and progress.stage is not None:
        left = max(0.0, left - min(time.time() - progress.begun, pace or 0.0))
    in_stage = is_live and progress.stage_begun is not None
    number = progress.round_number
    return ServerStatus(
        home=str(home.path),
        state=state,
        run=run,
        adversary=None if plan is None else plan.adversary,
        round_number=number + 1 if is_live and number is not None else None,
        rounds_done=progress.rounds_done,
        num_rounds=None if plan is None else plan.num_rounds,
        stage=progress.stage if in_stage else None,
        answered=progress.answered if in_stage else (),
        waiting=progress.waiting if is_live else (),
        until=progress.until if is_live else None,
        enrolled=enrolled,
        online=progress.online if is_live else None,
        num_lost=progress.num_lost,
        num_refused=progress.num_refused,
        losses=progress.losses,
        unbound=progress.unbound if is_live else {},
        groups=() if run is None or plan is None else _groups(home, run, plan, progress),
        accuracy=progress.accuracy,
        seconds_a_round=pace,
        seconds_left=left,
        stage_seconds=progress.stage_seconds,
        last_event=progress.time,
    )


def _state(home: ServerHome, run: str | None, progress: RunProgress) -> str:
    if run is None:
        return "no plan"
    if is_finished(home.run_path):
        return "finished"
    if _is_locked(home.ledger_path.with_name(home.ledger_path.name + ".lock")):
        return "running"
    return "stopped" if progress.run is not None or home.run_path.exists() else "not started"


def _is_locked(path: Path) -> bool:
    """Whether a process holds the ledger's lock, by the kernel's own list: to try it could keep the server out."""
    try:
        found = os.stat(path)
        listed = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    where = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any(where in line.split() for line in listed.splitlines())


def _groups(home: ServerHome, run: str, plan: Plan, progress: RunProgress) -> tuple[GroupStatus, ...]:
    spent: dict[str, float] = {}
    if home.ledger_path.is_file():
        with Ledger.read(home.ledger_path) as ledger:
            if run in ledger.state.runs:
                spent = ledger.spent_by_group(ledger.state.run(run))
    counted = [progress.groups.get(number, GroupProgress()) for number in range(len(plan.groups))]
    return tuple(
        GroupStatus(
            name=group.name,
            clients=group.num_clients,
            epsilon=group.epsilon,
            delta=group.delta,
            spent=spent.get(group.name),
            released=sums.released,
            given_up=sums.given_up,
            tried_again=sums.aborted,
        )
        for group, sums in zip(plan.groups, counted, strict=True)
    )


def _node(home: NodeHome) -> NodeStatus:
    budget, enrolment = home.budget, home.enrolment
    spent = spent_server = 0.0
    runs: tuple[JoinedStatus, ...] = ()
    if home.ledger_path.exists():
        with OwnLedger(home, is_snapshot=True) as ledger:
            spent, spent_server = ledger.promised(budget), ledger.shown_to_server(budget)
            runs = tuple(
                JoinedStatus(
                    name=run.name,
                    rounds=run.event.num_rounds,
                    asked=run.asked,
                    sent=run.sent,
                    cap=run.cap,
                    is_rotation=run.is_rotation,
                )
                for run in ledger.runs.values()
            )
    refusals = [(at, text) for at, text in log_lines(home.log_path) if text.startswith(_REFUSALS)]
    return NodeStatus(
        home=str(home.path),
        name=budget.name,
        epsilon=budget.epsilon,
        delta=budget.delta,
        spent=spent,
        epsilon_server=budget.server_limit,
        spent_server=spent_server,
        against=budget.against,
        enrolment=None if enrolment is None else enrolment.digest.hex(),
        clients=None if enrolment is None else len(enrolment.clients),
        runs=runs,
        last_refusal=refusals[-1][1] if refusals else None,
        refused_at=refusals[-1][0] if refusals else None,
        num_refusals=len(refusals),
    )


def _finite(content: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
