"""What can be known of a deployment from the files in its server's home, while it runs.

Place: between a server's home and the page. Read only, and no key is read. The lines of progress name clients that were
asked in a round; the page counts them and names none.

Guarantees (tests of the same name):
  nobody_is_named           no client's name is in what is shown.
  every_event_counts_once   however many pages ask at the same time.
"""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from gdpfed.errors import InputError
from gdpfed.flower.operate.progress import GroupProgress, RunProgress, after
from gdpfed.flower.server.events import EVENTS
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan
from gdpfed.privacy.rounding import promise, rounded_up
from gdpfed.runs.folder import is_finished
from gdpfed.serve.tail import Tail

__all__ = ["DeployedGroup", "DeploymentStatus", "DeploymentWatch"]


@dataclass(frozen=True, kw_only=True)
class DeployedGroup:
    """A group of the plan: what it is promised, has spent, and how its sums went."""

    name: str
    num_clients: int
    promised: str
    spent: str | None
    share: float | None
    released: int
    given_up: int
    aborted: int


@dataclass(frozen=True, kw_only=True)
class DeploymentStatus:
    """What the page shows; None is what is not known yet."""

    home: str
    run: str | None
    enrolled: int
    state: str
    adversary: str
    rounds_done: int
    num_rounds: int
    stage: str | None
    asked: int
    answered: int
    dropped: int
    accuracy: float | None
    loss: float | None
    seconds_ago: float | None
    seconds_a_round: float | None
    groups: tuple[DeployedGroup, ...]

    @property
    def seconds_left(self) -> float | None:
        """By the rounds so far."""
        rounds_left = self.num_rounds - self.rounds_done
        return None if self.seconds_a_round is None else rounds_left * self.seconds_a_round

    @property
    def words(self) -> str:
        """In a sentence, for whoever does not see the page."""
        judged = "" if self.accuracy is None else f", accuracy {self.accuracy:.2f} %"
        return f"{self.state}: {self.rounds_done} of {self.num_rounds} rounds done{judged}"


class DeploymentWatch:
    """A server's home, looked at again and again: events are read once."""

    def __init__(self, home: Path) -> None:
        if not (home / "server.key").is_file():
            raise InputError(f"expected a server's home (with server.key), got {str(home)!r}: gdpfed flower server")
        self._home = home
        self._tail = Tail(home / EVENTS)
        self._counted = 0
        self._progress = RunProgress()
        self._ends: list[float] = []
        self._plan: tuple[int, Plan] | None = None
        self._lock = threading.Lock()

    def status(self) -> DeploymentStatus:
        """As it stands now. Calls come from several threads, one after the other."""
        with self._lock:
            return self._status()

    def _status(self) -> DeploymentStatus:
        before = self._tail.lines
        self._tail.grown()
        if self._tail.lines is not before:
            self._counted, self._progress, self._ends = 0, RunProgress(), []
        for event in self._tail.lines[self._counted :]:
            self._progress = after(self._progress, event)
            moment = event.get("time")
            if event.get("event") in ("started", "round") and isinstance(moment, int | float):
                # A run that goes on starts its clock anew.
                self._ends = [*([] if event["event"] == "started" else self._ends), float(moment)]
        self._counted = len(self._tail.lines)
        plan, progress = self._verified_plan(), self._progress
        rounds = len(self._ends) - 1
        return DeploymentStatus(
            home=str(self._home),
            run=self._run_name(),
            enrolled=self._enrolled(),
            state=self._state(),
            adversary=plan.adversary if plan else "",
            rounds_done=progress.rounds_done,
            num_rounds=plan.num_rounds if plan else 0,
            stage=progress.stage,
            asked=progress.asked,
            answered=len(progress.answered),
            dropped=len(progress.dropped),
            accuracy=progress.accuracy,
            loss=progress.loss,
            seconds_ago=max(0.0, time.time() - self._tail.changed_at) if self._tail.lines else None,
            seconds_a_round=(self._ends[-1] - self._ends[0]) / rounds if rounds > 0 else None,
            groups=tuple(_group(plan, number, progress) for number in range(len(plan.groups))) if plan else (),
        )

    def _state(self) -> str:
        if is_finished(self._home / "run") or self._progress.ended:
            return "finished"
        if not (self._home / "plan.toml").is_file():
            return "waiting for a plan"
        return "running" if self._tail.lines else "not started"

    def _verified_plan(self) -> Plan | None:
        """Verified once for each version of its file."""
        path = self._home / "plan.toml"
        if not path.is_file():
            return None
        stamp = path.stat().st_mtime_ns
        if self._plan is None or self._plan[0] != stamp:
            self._plan = stamp, load_plan(path)
        return self._plan[1]

    def _run_name(self) -> str | None:
        found = _json(self._home / "run.json")
        return str(found["run"]) if isinstance(found, dict) and "run" in found else None

    def _enrolled(self) -> int:
        found = _json(self._home / "enrolment.json")
        clients = found.get("clients") if isinstance(found, dict) else None
        return len(clients) if isinstance(clients, list) else 0


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


def _group(plan: Plan, number: int, progress: RunProgress) -> DeployedGroup:
    group, state = plan.groups[number], progress.groups.get(number, GroupProgress())
    return DeployedGroup(
        name=group.name,
        num_clients=group.num_clients,
        promised=promise(group.epsilon),
        spent=None if state.epsilon is None else rounded_up(state.epsilon),
        share=None if state.epsilon is None else state.epsilon / group.epsilon,
        released=state.released,
        given_up=state.given_up,
        aborted=state.aborted,
    )
