"""A server that tries to tell from times and lengths which nodes trained: real node processes over loopback sockets.

    python -m tests.attacks.answer_times [--rounds 100] [--runs 5] [--nodes 6] [--flower FOLDER]
    python -m tests.attacks.answer_times --probes --rounds 8 --answer-seconds 10

Every node is a process of its own that answers each message by `Node.answer`, over a TCP connection on 127.0.0.1. It is
warm: what a process for each message adds, a fork or a whole start, varies by more than anything measured here, so
what cannot be seen here cannot be seen through Flower. The server writes down, for every input: when it came, how long
it was, in which place among the others, and how long the same node took for its next three answers, since a training
that still runs would slow them down. Half of the answers choose the best of several classifiers, the other half say how
good it is (area under the curve, AUC: 0.5 is guessing), and the other way round. Nodes note their coins, which the
classifiers are judged by.

With ``--flower`` the nodes are real SuperNodes before a real SuperLink, and the operator watches from inside the
SuperLink: when each node took a message and when its answer came, with how many bytes; and two times that the node
itself states with it, when the answer was made and how long its app ran. The app's bundle notes the coins.

The control takes the fixed moment away: the node answers when it is ready.

With ``--probes`` the server also sends one node something else while its input waits: nonsense, an unknown stage, a
right announcement, keys. Each goes to a new process, as with Flower, on the core that the node trains on. Its control
takes the lock away: then how long a process takes to start and to answer tells the coin. With the lock no answer comes
before the input's moment.
"""

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from gdpfed.flower.node import answers, coin
from gdpfed.flower.node.node_home import NodeHome
from gdpfed.flower.operate import up
from gdpfed.flower.operate.processes import KeptProcess, LocalFlower
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.shared.carrier import packet_in, reply
from gdpfed.flower.shared.wire import pack
from tests.flower.federations import FIRST_NODE, NUM_PARAMS, Federation, stage_of
from tests.flower.in_process_grid import InProcessGrid

__all__ = ["Verdict", "attack", "best_guess"]

FloatArray = NDArray[np.float64]
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "answer_times.json"
_NAMES = ("time of the input", "length", "next answer", "second next", "third next")
_STATED = (
    *("stated moment", "stated seconds", "next stated", "second next stated", "third next stated"),
    *("since it was taken", "since it was made"),
)
_KEY = b"loopback"
_STAGES = ("input", "agree", "reveal", "keys")


def _train(vector: NDArray[Any], seconds: float) -> NDArray[np.float64]:
    """Keeps a core busy, as training does, and moves the model a little."""
    until = time.monotonic() + seconds
    matrix = np.eye(120) + 0.01
    while time.monotonic() < until:
        matrix = matrix @ matrix / np.linalg.norm(matrix)
    return vector.astype(np.float64) + 0.01 * matrix[0, 0]


def node_process(home: str, number: int, port: int, seconds: float, is_hidden: bool, core: int | None = None) -> None:
    """Answers until the connection ends; notes its coins for whoever judges the attack. ``core``: where it runs."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    coins: list[tuple[int, bool]] = []
    current = [0]

    def toss(rate: float) -> bool:
        says_yes = coin.toss(rate)
        coins.append((current[0], says_yes))
        return says_yes

    answers.toss = toss
    if not is_hidden:
        answers.sleep_until = lambda _: None
        answers.hidden_update = _when_ready
    with Client(("127.0.0.1", port), authkey=_KEY) as connection:
        connection.send(number)
        while True:
            try:
                stage, packet = connection.recv()
            except EOFError:
                return
            if stage == "coins":
                connection.send([says_yes for _, says_yes in coins])
                continue
            node = answers.Node(
                NodeHome(home), node_id=number, num_params=NUM_PARAMS, train=lambda vector, _: _train(vector, seconds)
            )
            connection.send_bytes(node.answer(stage, packet))


def _when_ready(train: Callable[[], Any], *, says_yes: bool, nothing: Any, ready_at: float) -> Any:
    del ready_at
    return train() if says_yes else nothing


class LoopbackGrid(InProcessGrid):
    """Messages go to the nodes' processes; a thread for each connection notes when an answer came."""

    def __init__(self, connections: dict[int, Connection]) -> None:
        super().__init__({})
        self._connections = connections
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count(1)
        self.seen: dict[int, list[tuple[str, float, int, float]]] = {node: [] for node in connections}

    def get_node_ids(self) -> Iterable[int]:
        """All."""
        return list(self._connections)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sent at once, to all."""
        numbers = []
        for message in messages:
            number = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = number
            threading.Thread(target=self._exchange, args=(number, message), daemon=True).start()
            numbers.append(number)
        return numbers

    def _exchange(self, number: str, message: Message) -> None:
        node, stage = message.metadata.dst_node_id, stage_of(message)
        connection = self._connections[node]
        sent = time.monotonic()
        connection.send((stage, packet_in(message)))
        packet = connection.recv_bytes()
        came = time.monotonic()
        self.seen[node].append((stage, came - sent, len(packet), came))
        self._replies[number] = reply(message, packet)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What has come."""
        return [self._replies.pop(number) for number in message_ids if number in self._replies]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well the best classifier does on answers that it was not chosen by."""

    classifier: str
    auc: float
    yes: int
    no: int
    lengths: tuple[int, ...]


def attack(
    *, rounds: int, runs: int = 1, nodes: int = 6, answer_seconds: float = 0.4, is_hidden: bool = True
) -> Verdict:
    """Runs whole deployments, and guesses."""
    rows: list[FloatArray] = []
    coins: list[bool] = []
    lengths: set[int] = set()
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="gdpfed-times-") as folder:
            seen = _deployment(Path(folder), rounds, nodes, answer_seconds, is_hidden)
        for of_node, tossed in seen:
            features, answered = _features(of_node)
            rows.append(features)
            coins += tossed[: len(features)]
            lengths |= answered
    classifier, auc = best_guess(np.concatenate(rows), np.array(coins))
    return Verdict(
        classifier=classifier, auc=auc, yes=sum(coins), no=len(coins) - sum(coins), lengths=tuple(sorted(lengths))
    )


def _deployment(
    folder: Path,
    rounds: int,
    nodes: int,
    answer_seconds: float,
    is_hidden: bool,
    *,
    grid: Callable[[dict[int, Connection], Federation], "LoopbackGrid"] | None = None,
    core: int | None = None,
) -> list[tuple[list[tuple[str, float, int, float]], list[bool]]]:
    settings = {"dropout_rate": 0.0, "answer_seconds": answer_seconds, "poll_seconds": 0.002}
    settings |= {f"{stage}_seconds": 60.0 for stage in ("announce", "keys", "shares", "input", "agree", "reveal")}
    federation = Federation(
        folder, sizes=(nodes // 2, nodes - nodes // 2), epsilons=(4.0, 8.0), method="gdpfed", rounds=rounds,
        participation=0.5, asks=rounds, test_seed=None, settings=settings,
    )  # fmt: skip
    spawn = multiprocessing.get_context("spawn")
    with Listener(("127.0.0.1", 0), authkey=_KEY) as listener:
        processes = [
            spawn.Process(
                target=node_process,
                args=(str(federation.node_path(number)), FIRST_NODE + number, listener.address[1],
                      0.4 * answer_seconds, is_hidden, core if number == 0 else None),
                daemon=True,
            )
            for number in federation.numbers
        ]  # fmt: skip
        for process in processes:
            process.start()
        connections = {connection.recv(): connection for connection in (listener.accept() for _ in processes)}
        watching = LoopbackGrid(connections) if grid is None else grid(connections, federation)
        federation.serve(watching)
        found = []
        for node, connection in sorted(connections.items()):
            connection.send(("coins", b""))
            found.append((watching.seen[node], connection.recv()))
            connection.close()
        for process in processes:
            process.join()
    return found


_PROBER = """
import os, sys
os.sched_setaffinity(0, {0})
from gdpfed.flower.node import answers, node_home
if sys.argv[3] == "free":
    import contextlib
    node_home.alone = lambda _: contextlib.nullcontext()
node = answers.Node(node_home.NodeHome(sys.argv[1]), node_id=1, num_params=17, train=lambda vector, _: vector)
node.answer(sys.argv[2], sys.stdin.buffer.read())
"""
_PROBES = ("input", "unknown", "announce", "keys")


class ProbingGrid(LoopbackGrid):
    """As soon as the first node is asked for its input, it gets another message, too."""

    def __init__(self, connections: dict[int, Connection], federation: Federation, *, is_hidden: bool) -> None:
        super().__init__(connections)
        self._federation, self._is_hidden = federation, is_hidden
        self._keys = b""
        # For each input: how long after it was sent the probe was answered.
        self.probed: list[float] = []

    def _exchange(self, number: str, message: Message) -> None:
        node, stage = message.metadata.dst_node_id, stage_of(message)
        if node == FIRST_NODE and stage == "keys":
            self._keys = packet_in(message)
        if node != FIRST_NODE or stage != "input":
            super()._exchange(number, message)
            return
        found: list[float] = []
        probing = threading.Thread(target=self._probe, args=(time.monotonic(), found))
        probing.start()
        super()._exchange(number, message)
        probing.join()
        self.probed += found

    def _probe(self, sent: float, found: list[float]) -> None:
        stage = _PROBES[len(self.probed) % len(_PROBES)]
        right = {"announce": pack("announce", bytes(32), self._federation.enrolment.as_json().encode())}
        # The very request that the node answered: answered again, and its session goes on.
        packet = {**right, "keys": self._keys}.get(stage, b"x" * 400)
        words = [str(self._federation.node_path(0)), stage, "held" if self._is_hidden else "free"]
        # The input must be there first.
        time.sleep(0.1)
        subprocess.run([sys.executable, "-c", _PROBER, *words], input=packet, check=True)
        found.append(time.monotonic() - sent)


def attack_by_probes(*, rounds: int, answer_seconds: float, is_hidden: bool = True) -> tuple[float, float]:
    """The AUC of telling one node's coins by the times of probes, and the part of them that came before the moment."""
    with tempfile.TemporaryDirectory(prefix="gdpfed-probes-") as folder:
        grids: list[ProbingGrid] = []

        def probing(connections: dict[int, Connection], federation: Federation) -> LoopbackGrid:
            grids.append(ProbingGrid(connections, federation, is_hidden=is_hidden))
            return grids[0]

        seen = _deployment(Path(folder), rounds, 2, answer_seconds, is_hidden=True, grid=probing, core=0)
    times = np.array(grids[0].probed)
    return _auc(times, np.array(seen[0][1][: len(times)])), float((times < answer_seconds).mean())


def _features(seen: list[tuple[str, float, int, float]]) -> tuple[FloatArray, set[int]]:
    """For each input: its time and length, and the times of the node's next three answers."""
    relevant = [one for one in seen if one[0] in _STAGES]
    rows, lengths = [], set()
    for index, (stage, seconds, length, _) in enumerate(relevant):
        if stage == "input":
            following = [one[1] for one in relevant[index + 1 : index + 4]]
            rows.append([seconds, float(length), *following, *[0.0] * (3 - len(following))])
            lengths.add(length)
    return np.array(rows), lengths


def _auc(scores: FloatArray, labels: NDArray[np.bool_]) -> float:
    """The chance that a yes scores above a no; ties count half."""
    values, inverse = np.unique(scores, return_inverse=True)
    counts = np.bincount(inverse)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    yes, no = int(labels.sum()), int((~labels).sum())
    del values
    return float((ranks[labels].sum() - yes * (yes + 1) / 2) / (yes * no))


def best_guess(features: FloatArray, labels: NDArray[np.bool_], names: Sequence[str] = _NAMES) -> tuple[str, float]:
    """The classifier that does best on every second answer, and its AUC on the others; then the other way round. The
    mean of the two AUCs; a classifier whose AUC is below 0.5 on what it is chosen by is turned round."""
    median = np.median(features, axis=0)
    spread = np.median(np.abs(features - median), axis=0)
    scaled = np.clip((features - median) / np.where(spread > 0, spread, 1.0), -20, 20)
    every_second = np.arange(len(labels)) % 2 == 0
    (first, one), (second, other) = (_chosen(scaled, labels, learn, names) for learn in (every_second, ~every_second))
    return first if first == second else f"{first}; {second}", (one + other) / 2


def _chosen(
    scaled: FloatArray, labels: NDArray[np.bool_], learn: NDArray[np.bool_], names: Sequence[str]
) -> tuple[str, float]:
    """The classifier that does best on ``learn``, where none is judged by what it was fitted to; its AUC elsewhere."""
    scores = {name: scaled[:, number] for number, name in enumerate(names)}
    scores |= {f"{name}, from the middle": np.abs(scaled[:, number]) for number, name in enumerate(names)}
    scores["25 nearest neighbours"] = _neighbours(scaled, labels, learn)
    by_learning = {name: _auc(score[learn], labels[learn]) for name, score in scores.items()}
    linear, squares = "linear in all, and squares", np.hstack([scaled, scaled**2])
    halves = [learn & (np.cumsum(learn) % 2 == part) for part in (0, 1)]
    fitted = [_auc(_linear(squares, labels, own)[other], labels[other]) for own, other in (halves, halves[::-1])]
    scores[linear], by_learning[linear] = _linear(squares, labels, learn), sum(fitted) / 2
    best = max(by_learning, key=lambda name: abs(by_learning[name] - 0.5))
    auc = _auc(scores[best][~learn], labels[~learn])
    return best, auc if by_learning[best] >= 0.5 else 1 - auc


def _linear(features: FloatArray, labels: NDArray[np.bool_], learn: NDArray[np.bool_]) -> FloatArray:
    """Fisher's discriminant, with a little ridge."""
    yes, no = features[learn & labels], features[learn & ~labels]
    pooled = np.cov(np.vstack([yes - yes.mean(0), no - no.mean(0)]).T) + 0.1 * np.eye(features.shape[1])
    scores: FloatArray = features @ np.linalg.solve(pooled, yes.mean(0) - no.mean(0))
    return scores


def _neighbours(features: FloatArray, labels: NDArray[np.bool_], learn: NDArray[np.bool_], k: int = 25) -> FloatArray:
    known, known_labels = features[learn], labels[learn]
    places = np.flatnonzero(learn)
    scores = np.zeros(len(features))
    for number, row in enumerate(features):
        distances = ((known - row) ** 2).sum(1)
        # Nobody is its own neighbour.
        distances[places == number] = np.inf
        scores[number] = known_labels[np.argsort(distances)[:k]].mean()
    return scores


# Through Flower.

# In the SuperLink: what its operator can see of every message to a node, and of every answer.
_WATCHING = """
import json, sys, time
from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.fleet import fleet_handlers

seen = open(sys.argv.pop(1), "a", buffering=1)
pull, push, push_object = fleet_handlers.pull_messages, fleet_handlers.push_messages, fleet_handlers.push_object
confirm = fleet_handlers.confirm_message_received

def note(*facts):
    seen.write(json.dumps([*facts, time.time()]) + "\\n")

def pulled(*, request, **others):
    answer = pull(request=request, **others)
    for message in answer.messages_list:
        note("pull", request.node.node_id, message.metadata.message_id, message.metadata.message_type)
    return answer

def pushed(*, request, **others):
    head = request.messages_list[0].metadata
    note("push", head.src_node_id, head.reply_to_message_id, head.created_at, request.clientapp_runtime_list[0],
         request.ByteSize())
    return push(request=request, **others)

def pushed_object(*, request, **others):
    note("object", request.node.node_id, request.ByteSize())
    return push_object(request=request, **others)

def confirmed(*, request, **others):
    note("confirm", request.node.node_id, request.message_object_id)
    return confirm(request=request, **others)

fleet_handlers.pull_messages, fleet_handlers.push_messages = pulled, pushed
fleet_handlers.confirm_message_received = confirmed
fleet_handlers.push_object = pushed_object
flower_superlink()
"""
# In the bundle: as long a training as is usual, and which way the coin of which message fell.
_NOTING = """

import os
from flwr.clientapp import ClientApp
from gdpfed.flower.node import answers, coin


def noted_toss(rate):
    says_yes = coin.toss(rate)
    with open({folder!r} + "/" + str(os.getpid()), "w") as note:
        note.write(Noting.message + (" 1" if says_yes else " 0"))
    return says_yes


class Noting(ClientApp):
    def __call__(self, message, context):
        Noting.message = message.metadata.message_id
        return super().__call__(message, context)


app.__class__ = Noting
answers.toss = noted_toss
"""
_WHEN_READY = """
answers.sleep_until = lambda _: None
answers.hidden_update = lambda train, *, says_yes, nothing, ready_at: train() if says_yes else nothing
"""
_LONG_TRAINING = """

_quick_train = train


def train(model, data, context):
    import time

    until = time.monotonic() + {seconds!r}
    while time.monotonic() < until:
        trained = _quick_train(model, data, context)
    return trained
"""


class WatchedFlower(LocalFlower):
    """Its SuperLink writes down what it sees."""

    @property
    def seen(self) -> Path:
        """A line for each."""
        return self.folder / "seen.jsonl"

    def _start(self, name: str, command: list[str]) -> KeptProcess:
        watched = [sys.executable, "-P", "-c", _WATCHING, str(self.seen), *command[1:]]
        return super()._start(name, watched if name == "superlink" else command)


def deployed(folder: Path, *, rounds: int, nodes: int, answer_seconds: float, is_hidden: bool) -> Path:
    """One deployment in a new folder, with what was seen of it."""
    seconds = {f"{stage}_seconds": 120.0 for stage in ("start", "announce", "keys", "shares", "agree", "reveal")}
    federation = up.prepare(
        folder,
        # One group: a coin that differs between nodes would be guessed from who they are.
        up.UpSettings(nodes=nodes, rounds=rounds, method="gdpfed", epsilons=(8.0,)),
        deployment=DeploymentSettings(answer_seconds=answer_seconds, input_seconds=240.0, **seconds),
    )
    coins = folder / "coins"
    coins.mkdir()
    client = next((folder / "app").rglob("client.py"))
    with client.open("a") as bundle:
        bundle.write(_NOTING.format(folder=str(coins)) + ("" if is_hidden else _WHEN_READY))
    with client.with_name("task.py").open("a") as bundle:
        bundle.write(_LONG_TRAINING.format(seconds=0.2 * answer_seconds))
    with WatchedFlower(folder) as deployment:
        up.run(federation, deployment, lambda _: None)
    return folder


def flower_verdict(folders: Iterable[Path]) -> Verdict:
    """From what lies in the folders of deployments, also of those that have not ended."""
    coins: dict[str, str] = {}
    seen: list[list[dict[str, Any]]] = []
    for folder in folders:
        coins |= dict(path.read_text().split() for path in (folder / "coins").iterdir())
        seen += _answers((folder / "seen.jsonl").read_text().splitlines()).values()
    rows, labels, lengths = [], [], set()
    for of_node in seen:
        # A node's own number is in its answers, and takes more bytes or fewer.
        asked = [answer for answer in of_node if answer["stage"] == "input"]
        usual = asked[0]["length"] if asked else 0
        for index, answer in enumerate(of_node):
            following = of_node[index + 1 : index + 4]
            # At its first ask a node verifies the plan, which takes longer than anything else, whatever the coin.
            if answer not in asked[1:] or answer["message"] not in coins or len(following) < 3:
                continue
            rows.append(
                [
                    *(answer["seconds"], answer["length"] - usual, *(one["seconds"] for one in following)),
                    *(answer["made"], answer["stated"], *(one["stated"] for one in following)),
                    *(answer["confirmed"], answer["seconds"] - answer["made"]),
                ]
            )
            labels.append(coins[answer["message"]] == "1")
            lengths.add(answer["length"] - usual)
    classifier, auc = best_guess(np.array(rows), np.array(labels), (*_NAMES, *_STATED))
    return Verdict(
        classifier=classifier, auc=auc, yes=sum(labels), no=len(labels) - sum(labels), lengths=tuple(sorted(lengths))
    )


def _answers(lines: Iterable[str]) -> dict[int, list[dict[str, Any]]]:
    """Every node's answers in order: stage, seconds since it took the message, bytes, and what the node states."""
    taken: dict[str, tuple[str, float]] = {}
    confirmed: dict[str, float] = {}
    found: dict[int, list[dict[str, Any]]] = {}
    for kind, node, *facts in map(json.loads, lines):
        if kind == "pull":
            taken[facts[0]] = (facts[1].partition(".")[2], facts[2])
        elif kind == "confirm":
            confirmed[facts[0]] = facts[1]
        elif kind == "object":
            found[node][-1]["length"] += facts[0]
        elif facts[0] in taken:
            message, made, stated, size, came = facts
            stage, since = taken[message]
            answer = {"stage": stage, "message": message, "seconds": came - since, "made": made - since}
            answer["confirmed"] = came - confirmed.get(message, since)
            found.setdefault(node, []).append(answer | {"stated": stated, "length": size})
    return found


def main() -> int:
    """Prints both verdicts; exit code 1 if the attack does better than 0.53."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--answer-seconds", type=float, default=0.4)
    parser.add_argument("--flower", type=Path, help="real SuperNodes, in a new folder; results are recorded")
    parser.add_argument("--judge", action="store_true", help="of --flower: what lies in the folder, without running")
    parser.add_argument("--load", type=float, help="of --judge: what uptime said while the deployment ran")
    parser.add_argument("--probes", action="store_true", help="probe one node; --answer-seconds 8 and above")
    asked = parser.parse_args()
    if asked.probes:
        verdicts = {
            is_hidden: attack_by_probes(rounds=asked.rounds, answer_seconds=asked.answer_seconds, is_hidden=is_hidden)
            for is_hidden in (False, True)
        }
        for is_hidden, (auc, early) in verdicts.items():
            print("with" if is_hidden else "without", f"the lock: AUC {auc:.2f}, {early:.0%} early")  # noqa: T201
        return 1 if verdicts[True][1] > 0 or verdicts[False][1] == 0 else 0
    common = {"nodes": asked.nodes, "answer_seconds": asked.answer_seconds}
    if asked.flower:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        hidden = [asked.flower / f"hidden{number}" for number in range(asked.runs)]
        if not asked.judge:
            deployed(asked.flower / "control", rounds=25, is_hidden=False, **common)
            for folder in hidden:
                deployed(folder, rounds=asked.rounds, is_hidden=True, **common)
        control, real = flower_verdict([asked.flower / "control"]), flower_verdict(hidden)
        verdicts = {"control": dataclasses.asdict(control), "hidden": dataclasses.asdict(real)}
        load = os.getloadavg()[0] if asked.load is None else asked.load
        RESULTS.write_text(json.dumps({**common, "load": load, **verdicts}, indent=1) + "\n")
    else:
        control = attack(rounds=20, is_hidden=False, **common)
        real = attack(rounds=asked.rounds, runs=asked.runs, **common)
    print("answers when ready:", control, flush=True)  # noqa: T201
    print("answers at a fixed moment:", real, flush=True)  # noqa: T201
    return 1 if real.auc > 0.53 or control.auc < 0.9 else 0


if __name__ == "__main__":
    sys.exit(main())
