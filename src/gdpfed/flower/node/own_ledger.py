"""A node's own ledger: which runs it joined, what they cost, what it sent.

Place: `spend.db` in a node's home, in the files of `gdpfed.ledger.store`: SQLite with a write-ahead log and
synchronous=FULL, a journal beside it, a hash chain, one writer. Rows:

    join       a run's terms: its whole plan is charged for the node's group, all rounds at once
    round      a session that the node answered, by round and attempt: these only go up; and its one-time key
    sent       a masked input, before it leaves
    revealed   shares, before they leave

What is counted in a rotation: its asks, all of them when it is joined, against everybody. Every session that the node
answers is an ask, also one that comes to nothing, and there are no more than the plan states. No row tells a coin:
those of a node that trained and of one that sent zero are the same.

What is counted otherwise. Whoever sees the models: all rounds of all runs that were joined, whether or not the node was
sampled (it cannot know when it was not), composed by PLD. If a round in which the node revealed is tried again, one
release more has happened than rounds have passed, and the run's last round is refused instead. The server: every masked
input, also of attempts that came to nothing, because a quorum of others can unmask without this node.

Guarantees (tests of the same name):
  joining_charges_the_whole_plan     and a run that would overspend over all runs is refused.
  sessions_only_go_up                no round and attempt is answered twice, none before one that was answered.
  no_key_has_two_sessions            whatever else was put back: the row of its session is there before it is used.
  sent_inputs_are_capped             by the plan's largest number of participations, and by the owner's epsilon_server.
  asks_are_counted                   in a rotation: one beyond those of the plan is refused, an aborted one costs one.
  a_lowered_budget_counts_at_once    from the next round on.
  refusals_do_not_flatter            a printed cost is at least the cost, a printed budget at most the budget.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gdpfed.config import from_mapping
from gdpfed.errors import InputError, PrivacyError
from gdpfed.flower.node.node_home import NodeBudget, NodeHome
from gdpfed.flower.shared.terms import Terms
from gdpfed.ledger.chain import GENESIS
from gdpfed.ledger.spend import History, fits, merged, server_spent, spent
from gdpfed.ledger.store import Store
from gdpfed.planning.plan import Group, Plan
from gdpfed.privacy.accountant import SampledGaussian
from gdpfed.privacy.rounding import allowance, delta_up, rounded_up

__all__ = ["JoinedRun", "OwnLedger"]

# Attempts are rows: nobody may fill the disk with them.
_MOST_ATTEMPTS = 1000
# A session of a run: its round, and the attempt at it.
Position = tuple[int, int]
_NEVER: Position = (-1, -1)
_OF_EVENT = ("noise_multiplier", "sampling_rate", "num_rounds")


@dataclass(kw_only=True)
class JoinedRun:
    """A run as the node knows it."""

    terms: str
    name: str
    group: int
    event: SampledGaussian
    cap: int
    is_rotation: bool = False
    asked: int = 0
    last: Position = _NEVER
    sent: int = 0
    extra: int = 0
    revealed_round: int = -1
    sent_last: Position = _NEVER


class OwnLedger(contextlib.AbstractContextManager["OwnLedger"]):
    """The open ledger of a node."""

    def __init__(self, home: NodeHome, *, is_snapshot: bool = False) -> None:
        """To write, under the lock of the one writer; or a snapshot to look at, which disturbs nobody."""
        path = home.ledger_path
        if is_snapshot:
            self._store = Store.read(path)
        else:
            self._store = Store.open(path) if path.exists() else Store.create(path)
        self.runs: dict[str, JoinedRun] = {}
        # Of all runs: the sum of 1 / noise_multiplier^2 over the inputs that were sent.
        self.precision = 0.0
        self._used_keys: set[str] = set()
        self._checked: NodeBudget | None = None
        try:
            for row in self._store.rows:
                self._apply(row.kind, row.content)
        except (KeyError, TypeError, ValueError):
            self._store.close()
            raise PrivacyError(f"{str(path)!r} has a row of another format: use the version that wrote it") from None

    def __exit__(self, *_: object) -> None:
        self._store.close()

    @property
    def num_rows(self) -> int:
        """How much was ever written."""
        return len(self._store.rows)

    @property
    def head(self) -> bytes:
        """The hash of the last row, and of all before it."""
        return bytes.fromhex(self._store.last_hash)

    def was(self, num_rows: int, head: bytes) -> bool:
        """Whether this ledger, when it had so many rows, ended with this hash."""
        if not 0 <= num_rows <= self.num_rows:
            return False
        return bytes.fromhex(self._store.rows[num_rows - 1].hash if num_rows else GENESIS) == head

    def _write(self, kind: str, content: dict[str, object]) -> None:
        self._store.append([(kind, content)])
        self._apply(kind, content)

    def _write_position(self, kind: str, run: JoinedRun, position: Position, **more: str) -> None:
        round_number, attempt = position
        self._write(kind, {"terms": run.terms, "round": round_number, "attempt": attempt, **more})

    def _apply(self, kind: str, row: Mapping[str, Any]) -> None:
        name = str(row["terms"])
        if kind == "join":
            self.runs[name] = JoinedRun(
                terms=name,
                name=str(row["run"]),
                group=_whole(row["group"]),
                event=from_mapping(SampledGaussian, {name: row[name] for name in _OF_EVENT}, source="a row"),
                cap=_whole(row["cap"]),
                is_rotation=row.get("sampling") == "rotation",
            )
            allowed = {"name": name, "epsilon": row["epsilon"], "delta": row["delta"]}
            self._checked = from_mapping(NodeBudget, allowed, source="a row")
            return
        run, position = self.runs[name], (_whole(row["round"]), _whole(row["attempt"]))
        if kind == "round":
            run.extra += run.revealed_round == position[0]
            run.asked += 1
            run.last = position
            if "key" in row:
                self._used_keys.add(str(row["key"]))
        elif kind == "sent":
            run.sent += 1
            run.sent_last = position
            self.precision += 0.0 if run.is_rotation else run.event.noise_multiplier**-2.0
        elif kind == "revealed":
            run.revealed_round = position[0]
        else:
            raise InputError(f"expected a known kind of row, got {kind!r}")

    def events(self) -> list[SampledGaussian]:
        """All rounds of all runs, and all asks of rotations."""
        return [run.event for run in self.runs.values()]

    def _hidden(self) -> History:
        """What the server sees of rotations: asks without coins."""
        return merged(run.event for run in self.runs.values() if run.is_rotation)

    def promised(self, budget: NodeBudget) -> float:
        """Epsilon of all runs that were joined, whole, against whoever sees the models."""
        return spent(self.events(), delta=budget.delta)

    def shown_to_server(self, budget: NodeBudget) -> float:
        """Epsilon of all that the server was sent, or may ask for in rotations that were joined."""
        return server_spent(self.precision, delta=budget.delta, hidden=self._hidden())

    def run(self, terms: Terms) -> JoinedRun | None:
        """The joined run with these terms; the same name with other terms is refused."""
        joined = self.runs.get(terms.digest.hex())
        if joined is None and any(run.name == terms.run for run in self.runs.values()):
            raise PrivacyError(f"run {terms.run!r} was joined on other terms: a run's terms never change")
        return joined

    def join(self, terms: Terms, plan: Plan, group: int, budget: NodeBudget) -> JoinedRun:
        """Charges all rounds of the plan for this node's group, if they keep the budget after all earlier runs."""
        planned = plan.groups[group]
        event = plan.mechanism(planned)
        _check_claim(planned, event, budget)
        if not fits([*self.events(), event], [(budget.epsilon, budget.delta)]):
            before = spent(self.events(), delta=budget.delta)
            raise PrivacyError(
                f"run {terms.run!r} would cost this node more than epsilon {_allowed(budget)}: {rounded_up(before)} is "
                f"spent or promised, the plan's {plan.num_releases} {'asks' if plan.is_rotation else 'rounds'} do not "
                f"fit"
            )
        if plan.is_rotation:
            self._check_server(self.precision, merged([*self._hidden(), event]), budget, what="this run")
        else:
            # A run that may have no input at all is not paid for.
            more = planned.noise_multiplier**-2.0
            self._check_server(self.precision + more, self._hidden(), budget, what="one more input")
        self._write(
            "join",
            {
                "terms": terms.digest.hex(),
                "run": terms.run,
                "group": group,
                "noise_multiplier": planned.noise_multiplier,
                "sampling_rate": planned.sampling_rate,
                "num_rounds": plan.num_releases,
                "cap": min(plan.participation_cap or plan.num_releases, plan.num_releases),
                **({"sampling": plan.sampling} if plan.is_rotation else {}),
                "epsilon": budget.epsilon,
                "delta": budget.delta,
            },
        )
        return self.runs[terms.digest.hex()]

    def check_budget(self, budget: NodeBudget) -> None:
        """Raises PrivacyError if the owner lowered the budget below what was promised."""
        known = self._checked
        if known is not None and budget.epsilon >= known.epsilon and budget.delta >= known.delta:
            return
        if not fits(self.events(), [(budget.epsilon, budget.delta)]):
            cost, allowed = rounded_up(spent(self.events(), delta=budget.delta)), f"the epsilon {_allowed(budget)}"
            raise PrivacyError(f"this node's runs cost {cost}, more than {allowed} that its owner now allows")

    def check_input(self, run: JoinedRun, budget: NodeBudget) -> None:
        """Raises PrivacyError if one more masked input would exceed what the server may learn."""
        if run.sent >= run.cap:
            raise PrivacyError(f"run {run.name!r} has had {run.sent} inputs of this node, as many as its plan allows")
        # Of a rotation all asks are counted already.
        more = 0.0 if run.is_rotation else run.event.noise_multiplier**-2.0
        self._check_server(self.precision + more, self._hidden(), budget, what="one more input")

    def check_later(self, run: JoinedRun) -> None:
        """Raises PrivacyError if there is no (round, attempt) left that `begin` would take."""
        last, charged = run.last[0], run.event.num_rounds
        again = last + 1 + run.extra + (run.revealed_round == last)
        if not run.is_rotation and min(again, last + 2 + run.extra) > charged:
            raise PrivacyError(f"run {run.name!r} paid for {charged} rounds: none is left for this node")

    def check_ask(self, run: JoinedRun) -> None:
        """Raises PrivacyError if a rotation has asked this node as often as its plan allows."""
        if run.is_rotation and run.asked >= run.cap:
            raise PrivacyError(f"run {run.name!r} has asked this node {run.asked} times, as often as its plan allows")

    def _check_server(self, precision: float, hidden: History, budget: NodeBudget, *, what: str) -> None:
        cost = server_spent(precision, delta=budget.delta, hidden=hidden)
        if not cost <= budget.server_limit:
            raise PrivacyError(
                f"{what} would show the server epsilon {rounded_up(cost)} of this node, more than the "
                f"{allowance(budget.server_limit)} that its owner allows: epsilon_server in budget.toml"
            )

    def has_used(self, key: bytes) -> bool:
        """Whether a session was answered with this one-time key."""
        return key.hex() in self._used_keys

    def begin(self, run: JoinedRun, position: Position, *, key: bytes) -> None:
        """Records a session and its one-time key before it is answered; refuses one that is not after all others of the
        run, and a key that had its session."""
        if self.has_used(key):
            raise PrivacyError("expected a one-time key that had no session yet, got one that had")
        round_number, attempt = position
        charged = run.event.num_rounds
        if attempt >= _MOST_ATTEMPTS:
            raise PrivacyError(f"expected fewer than {_MOST_ATTEMPTS} attempts at a round, got attempt {attempt}")
        if position <= run.last:
            raise PrivacyError(f"expected a (round, attempt) after {run.last}, got {position}: none is answered twice")
        if run.is_rotation:
            self.check_ask(run)
            self._write_position("round", run, position, key=key.hex())
            return
        extra = run.extra + (run.revealed_round == round_number)
        if round_number < 0 or round_number + 1 + extra > charged:
            again = f", {extra} of them twice" if extra else ""
            raise PrivacyError(f"run {run.name!r} paid for {charged} rounds, {round_number} is beyond them{again}")
        self._write_position("round", run, position, key=key.hex())

    def send(self, run: JoinedRun, position: Position, budget: NodeBudget) -> None:
        """Charges a masked input, before it leaves; once for each session."""
        self.check_input(run, budget)
        if position != run.last or run.sent_last == run.last:
            raise PrivacyError(f"an input of (round, attempt) {position} was sent already, or is too late")
        self._write_position("sent", run, position)

    def reveal(self, run: JoinedRun, position: Position) -> None:
        """Records that shares leave: the round counts as released."""
        self._write_position("revealed", run, position)


def _check_claim(group: Group, event: SampledGaussian, budget: NodeBudget) -> None:
    if group.delta > budget.delta or group.epsilon_release > budget.epsilon:
        raise PrivacyError(
            f"{group.name!r} of the plan costs epsilon {rounded_up(group.epsilon_release)} at delta "
            f"{delta_up(group.delta)}, this node allows {_allowed(budget)}"
        )
    cost = spent([event], delta=budget.delta)
    if not cost <= budget.epsilon:
        raise PrivacyError(f"the mechanism costs epsilon {rounded_up(cost)}, this node allows {_allowed(budget)}")


def _allowed(budget: NodeBudget) -> str:
    return f"{allowance(budget.epsilon)} at delta {allowance(budget.delta)}"


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError("expected a whole number in a row")
    return value
