"""A run in which something is killed, or a node lies, in every round: real processes, and what must hold afterwards.

Four nodes: three in a group that stands the loss of one, one in a group of its own. Everybody is asked in every round;
against the server everybody tosses a coin then.
The training changes nothing, so that what is released is noise alone, and its size can be measured. A lying node runs
the app's own code, but for what it sends: `_LYING` is added to the app, and does what the file ``lie`` says. A node
that was killed comes back before the next round: the server's test of the model waits for it (`_HOLDING`).
"""

import datetime
import math
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gdpfed.flower.node.node_home import NodeHome
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.operate.processes import LocalFlower
from gdpfed.flower.operate.progress import EventReader
from gdpfed.flower.operate.up import Federation, UpSettings, prepare, start, start_node, submit
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.events import EVENTS
from gdpfed.ledger.book import Ledger
from gdpfed.runs.folder import open_run

__all__ = ["FAULTS", "Fault", "Outcome", "Storm"]

STAGES = ("keys", "shares", "input", "agree", "reveal")
POINTS = ("charged", "reserved", "unmasked", "published", "checkpointed", "charging", "kept", "recorded")
NUM_PARAMS = 500
_NODES = 4
_LARGE_GROUP, _SMALL_GROUP = 0, 1
_VICTIM, _LONER = "node1", "node4"
_ROUND_SECONDS = 900.0
# Flower gives a node 60 s after its last sign of life; the server looks every two.
_MOST_WAITING = 65.0
# Of the measured variance of 500 Gaussians: one false alarm in more than a million.
_DEVIATIONS = 5.0


_LYING = """

import os
import signal
import time
from pathlib import Path

from flwr.app import Message
from flwr.clientapp import ClientApp

from gdpfed.flower.shared.carrier import packet_in, record_of


class Lying(ClientApp):
    def __call__(self, message, context):
        stage = message.metadata.message_type.partition(".")[2]
        node = Path(str(context.node_config["gdpfed-home"])).name
        kept = Path({folder!r}) / (node + "-" + stage)
        lie = Path({folder!r}) / "lie"
        asked, at, liar = lie.read_text().split() if lie.is_file() else ("", "", "")
        answer = super().__call__(message, context)
        if (stage, node) != (at, liar):
            kept.write_bytes(packet_in(answer))
        elif asked == "killed":
            lie.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        elif asked == "late":
            time.sleep({seconds!r})
        elif asked == "twice":
            answer = super().__call__(message, context)
        elif asked == "garbage":
            answer = Message(record_of(os.urandom(200)), reply_to=message)
        elif asked == "old":
            answer = Message(record_of(kept.read_bytes()), reply_to=message)
        return answer


app.__class__ = Lying
"""
_NANS = """

_honest_train = train


def train(model, data, context):
    lie = Path({folder!r}) / "lie"
    node = Path(str(context.node_config["gdpfed-home"])).name
    if lie.is_file() and lie.read_text().split() == ["nan", "input", node]:
        return [np.full_like(array, np.nan) for array in model]
    return _honest_train(model, data, context)
"""
_HOLDING = """

_honest_evaluate = evaluate


def evaluate(model, context):
    import time

    while (Path({folder!r}) / "hold").is_file():
        (Path({folder!r}) / "held").touch()
        time.sleep(0.05)
    return _honest_evaluate(model, context)
"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is killed in one round, or how the victim lies, and the groups whose sum may be lost by it."""

    name: str
    kills: str = ""
    lie: str = ""
    stage: str = ""
    victim: str = ""
    may_lose: tuple[int, ...] = ()


def _of_three(stage: str) -> Fault:
    return Fault(name=f"SuperNode of three, at {stage}", kills="node", stage=stage, victim=_VICTIM)


def _node_faults() -> list[Fault]:
    made = [_of_three(stage) for stage in STAGES if stage != "keys"]
    made.append(
        Fault(name="the only SuperNode of a group, at input", kills="node", stage="input", victim=_LONER,
              may_lose=(_SMALL_GROUP,))
    )  # fmt: skip
    made += [
        Fault(name=f"ClientApp alone, at {stage}", lie="killed", stage=stage, victim=_VICTIM)
        for stage in ("input", "reveal")
    ]
    return made


def _lies() -> list[Fault]:
    told = [
        ("garbage", "shares", "answers with garbage"), ("late", "input", "answers too late"),
        ("twice", "input", "answers twice"), ("nan", "input", "trains to NaNs"),
        ("old", "agree", "answers with another round's message"), ("garbage", "reveal", "answers with garbage"),
    ]  # fmt: skip
    return [Fault(name=f"a node {what}, at {stage}", lie=lie, stage=stage, victim=_VICTIM) for lie, stage, what in told]


FAULTS: tuple[Fault, ...] = (
    # First: everybody is asked for a key before the first round, and hardly anybody later.
    _of_three("keys"),
    Fault(name="ServerApp, charged", kills="server", stage="charged"),
    *_node_faults(),
    *(Fault(name=f"ServerApp, {point}", kills="server", stage=point) for point in POINTS if point != "charged"),
    Fault(name="SuperLink, at input", kills="superlink", stage="input"),
    *_lies(),
)


@dataclass(kw_only=True)
class Outcome:
    """What one fault did."""

    fault: Fault
    seconds: float = 0.0
    # From a kill of a node to the next stage, or the end of the round.
    waited: float | None = None
    released: tuple[int, ...] = ()
    charges: int = 0
    noise: float | None = None
    failures: list[str] = field(default_factory=list)


class Storm:
    """One federation and one run; each fault has a round of its own."""

    def __init__(
        self,
        folder: Path,
        faults: tuple[Fault, ...],
        *,
        stage_seconds: float = 30.0,
        against: Literal["models", "server"] = "models",
    ) -> None:
        self.folder, self.faults = folder, faults
        seconds = {f"{stage}_seconds": stage_seconds for stage in STAGES}
        # A sum that was unmasked and lost is one release more than rounds: nodes then refuse the last rounds.
        spare = 2 + sum(fault.kills in ("server", "superlink") for fault in faults)
        self.federation: Federation = prepare(
            folder,
            UpSettings(
                against=against,
                nodes=_NODES,
                rounds=len(faults) + 1 + spare,
                method="gdpfed",
                participation=1.0 if against == "models" else 0.5,
                epsilons=(8.0, 8.0, 8.0, 20.0),
            ),
            deployment=DeploymentSettings(dropout_rate=0.1, start_seconds=120.0, answer_seconds=6.0, **seconds),
        )
        task = next((folder / "app").rglob("task.py"))
        text = task.read_text()
        assert "STEPS = 20" in text
        liars = folder / "liars"
        liars.mkdir()
        self._lie, self._hold, self._held = (liars / name for name in ("lie", "hold", "held"))
        changed = text.replace("STEPS = 20", "STEPS = 0") + (_NANS + _HOLDING).format(folder=str(liars))
        task.write_text(changed)
        with (task.parent / "client.py").open("a") as client:
            client.write(_LYING.format(folder=str(liars), seconds=stage_seconds + 15))
        self.stops = folder / "stops"
        self.stops.write_text(
            " ".join(f"{fault.stage}:{number}" for number, fault in enumerate(faults) if fault.kills == "server")
        )
        self.events: list[dict[str, Any]] = []
        self._killed_at = 0.0
        self._reader = EventReader(self.federation.home.path / EVENTS)

    def run(
        self, say: Callable[[str], None], outcomes: list[Outcome], *, is_calm_at_the_end: bool = True
    ) -> list[Outcome]:
        """Runs through all faults and one round without; ``outcomes`` gets what happened in each, as it happens."""
        with LocalFlower(self.folder, keeps_state=True) as deployment:
            deployment.environment["GDPFED_FLOWER_TEST_MODE"] = "1"
            deployment.environment["GDPFED_FLOWER_STOP_AT"] = str(self.stops)
            start(self.federation, deployment)
            submit(self.federation, deployment)
            for number, fault in enumerate(self.faults):
                started = time.monotonic()
                ended = self._suffer(number, fault, deployment, following=self.faults[number + 1 : number + 2])
                outcome = self._judged(number, fault)
                outcome.seconds = ended - started
                self._judge_waiting(outcome)
                outcomes.append(outcome)
                say(f"{fault.name}: {outcome.seconds:.0f} s, {'; '.join(outcome.failures) or 'holds'}")
            if is_calm_at_the_end:
                self._await(deployment, lambda: self._is_done(len(self.faults)))
                outcomes.append(self._judged(len(self.faults), Fault(name="nothing")))
                say(f"a round without a fault: {'; '.join(outcomes[-1].failures) or 'holds'}")
        for text in self._over_all():
            outcomes[-1].failures.append(text)
            say(text)
        return outcomes

    def _look(self) -> None:
        self.events += self._reader.new()

    def _is_done(self, number: int) -> bool:
        return any(event["event"] == "round" and event["round"] == number for event in self.events)

    def _is_open(self, number: int, stage: str) -> bool:
        """Whether the stage of the round is the last one that was begun."""
        begun = [event for event in self.events if event["event"] in ("begin", "stage")]
        rounds = [event["round"] for event in begun if event["event"] == "begin"]
        return bool(rounds) and rounds[-1] == number and begun[-1].get("stage") == stage

    def _await(self, deployment: LocalFlower, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _ROUND_SECONDS
        while not holds():
            self._look()
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing happens: see {deployment.logs}, {self.federation.home.path}")
            time.sleep(0.05)

    def _suffer(
        self, number: int, fault: Fault, deployment: LocalFlower, *, following: tuple[Fault, ...] = ()
    ) -> float:
        """Kills and brings back, or lets a node lie; returns when the round had ended."""
        assert deployment.superlink is not None
        is_gone = fault.kills == "node" or fault.lie in ("killed", "late")
        # A round begins with shares: a lie there is made up before the round begins.
        lies_next = [f"{one.lie} {one.stage} {one.victim}" for one in following if one.lie and one.stage == "shares"]
        is_held = is_gone or bool(lies_next)
        if fault.lie:
            self._lie.write_text(f"{fault.lie} {fault.stage} {fault.victim}")
        elif fault.kills == "server":
            self._await(deployment, lambda: f"{fault.stage}:{number}" not in self.stops.read_text().split())
            self._await(deployment, lambda: not self._server_apps(deployment))
            submit(self.federation, deployment)
        else:
            self._await(deployment, lambda: self._is_open(number, fault.stage))
        if is_held:
            self._hold.touch()
        if fault.kills == "node":
            node = deployment.nodes[fault.victim]
            self._killed_at = time.time()
            _kill(node.find("flower-supernode"))
            node.wait()
        if fault.kills == "superlink":
            _kill(deployment.superlink.find("flower-superlink"))
            deployment.superlink.wait()
            deployment.start_superlink()
            submit(self.federation, deployment)
        if is_held:
            self._await(deployment, self._held.exists)
        elif not (fault.kills == "server" and fault.stage == "checkpointed"):
            self._await(deployment, lambda: self._is_done(number))
        ended = time.monotonic()
        self._lie.unlink(missing_ok=True)
        if fault.kills == "node":
            self._bring_back(deployment, fault.victim)
        if is_held:
            if is_gone and fault.lie:
                # Flower's SuperNode takes no other message before it has answered, or given up, this one.
                self._await(deployment, lambda: _is_free(deployment.nodes[fault.victim].said))
            for words in lies_next:
                self._lie.write_text(words)
            self._hold.unlink()
            self._await(deployment, lambda: self._is_done(number))
            self._held.unlink()
        return ended

    def _bring_back(self, deployment: LocalFlower, name: str) -> None:
        """Starts a node until it is admitted: the SuperLink refuses it while it has not noticed that it was killed."""
        deadline = time.monotonic() + _ROUND_SECONDS
        while time.monotonic() < deadline:
            known = len(deployment.nodes[name].said)
            start_node(self.federation, deployment, name)
            node = deployment.nodes[name]
            while node.is_alive and time.monotonic() < deadline:
                if "SuperNode ID:" in (node.said[known:] if len(node.said) >= known else node.said):
                    return
                time.sleep(0.2)
            time.sleep(2)
        raise AssertionError(f"{name} is not admitted: see {deployment.logs}")

    def _server_apps(self, deployment: LocalFlower) -> list[int]:
        return [] if deployment.superlink is None else deployment.superlink.find("flwr-serverapp")

    # What must hold.

    def _judge_waiting(self, made: Outcome) -> None:
        """A node that was killed is waited for as long as Flower takes to notice, and the log says why it went on."""
        if made.fault.kills != "node":
            return
        later = [event["time"] for event in self.events if event["time"] > self._killed_at and _goes_on(event)]
        made.waited = min(later) - self._killed_at if later else None
        if made.waited is None or made.waited > _MOST_WAITING:
            made.failures.append(f"the round went on after {made.waited} s")
        log = (self.federation.home.path / "server.log").read_text()
        lost = re.findall(rf"^(\S+) \w+: '{made.fault.victim}' .*: the round goes on without it$", log, flags=re.M)
        if not any(_moment(stamp) >= self._killed_at - 1 for stamp in lost):
            made.failures.append("the log does not say why the round went on")

    def _judged(self, number: int, fault: Fault) -> Outcome:
        self._look()
        made = Outcome(fault=fault)
        released = [event for event in self.events if event["event"] == "released" and event["round"] == number]
        made.released = tuple(sorted({group for event in released for group in event["groups"]}))
        state = Ledger.read(self.federation.home.ledger_path).state.run(self.federation.home.run_name)
        groups = range(len(self.federation.plan.groups))
        attempts = {group: state.attempts_of(number, group) for group in groups}
        made.charges = sum(a.state in ("charged", "published") for found in attempts.values() for a in found)
        for group in groups:
            num_released = sum(group in event["groups"] for event in released)
            num_charged = sum(attempt.state in ("charged", "published") for attempt in attempts[group])
            if num_charged < num_released:
                made.failures.append(f"{num_released} releases of group {group} with {num_charged} charges")
            if sum(attempt.state == "published" for attempt in attempts[group]) > 1:
                made.failures.append(f"group {group} published twice")
            is_lost = not any(attempt.state == "published" for attempt in attempts[group])
            if is_lost and group not in fault.may_lose:
                made.failures.append(f"group {group} was not released")
        self._measure_noise(number, made, [g for g in groups if any(a.state == "published" for a in attempts[g])])
        return made

    def _measure_noise(self, number: int, made: Outcome, groups: list[int]) -> None:
        """The variance of what was released, as a multiple of the plan's: at least 1."""
        plan = self.federation.plan
        records = {record.round_number: record for record in open_run(self.federation.home.run_path).records()}
        if number + 1 not in records or not groups:
            return
        planned = math.fsum((plan.groups[g].weight * plan.groups[g].noise_std) ** 2 for g in groups)
        made.noise = records[number + 1].update_norm ** 2 / NUM_PARAMS / planned / plan.server_learning_rate**2
        if made.noise < 1 - _DEVIATIONS * math.sqrt(2 / NUM_PARAMS):
            made.failures.append(f"noise of {made.noise:.2f} times the plan's variance")

    def _over_all(self) -> list[str]:
        found = []
        ledger = Ledger.read(self.federation.home.ledger_path)
        run = ledger.state.run(self.federation.home.run_name)
        for group, spent in zip(self.federation.plan.groups, ledger.spent_by_group(run).values(), strict=True):
            if not spent <= group.epsilon:
                found.append(f"{group.name} spent {spent} of {group.epsilon}")
        for name in self.federation.nodes:
            home = NodeHome(self.federation.node_home(name))
            with OwnLedger(home) as own:
                own.check_budget(home.budget)
                for joined in own.runs.values():
                    if max(joined.sent, joined.asked if joined.is_rotation else 0) > joined.cap:
                        found.append(f"{name} sent {joined.sent} inputs of at most {joined.cap}")
                    if joined.is_rotation and int(run.participations.max()) > joined.cap:
                        found.append(f"a client was charged {run.participations.max()} asks of {joined.cap}")
        return found


def _goes_on(event: dict[str, Any]) -> bool:
    return event["event"] in ("stage", "charged", "released", "aborted", "given up", "round")


def _moment(stamp: str) -> float:
    return datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S%z").timestamp()


def _is_free(log: str) -> bool:
    """Whether a SuperNode has sent an answer since it last received something, by the word of its log."""
    return log.rfind("Sending:") > log.rfind("Receiving:")


def _kill(processes: list[int]) -> None:
    assert processes, "nothing to kill"
    for process in processes:
        os.kill(process, signal.SIGKILL)
