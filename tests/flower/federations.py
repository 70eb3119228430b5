"""Small deployments on the in-process Grid: real homes, real apps, real messages."""

import contextlib
import dataclasses
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from gdpfed.flower.apps import client_app
from gdpfed.flower.node.node_home import NodeHome, make_node_home, pin
from gdpfed.flower.operate.between_runs import enrol, set_plan
from gdpfed.flower.server.deployment import Fault, serve
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.server_home import ServerHome, make_server_home
from gdpfed.flower.shared.enrolment import Enrolment
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets
from gdpfed.training.rounds import TrainingState
from tests.flower.in_process_grid import InProcessGrid, Late, LocalNode

DELTA = 1e-3
SEED = 7
FIRST_NODE = 100
MODEL: list[NDArray[Any]] = [np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), np.zeros(5, dtype=np.float32)]
NUM_PARAMS = 17


def moved(vector: NDArray[Any], client: int, round_number: int) -> NDArray[np.float64]:
    """What a client trains: its own direction in each round, longer than the clip norm for some."""
    seed = hashlib.sha256(f"{client} {round_number}".encode()).digest()
    direction = np.random.default_rng(list(seed)).normal(size=len(vector)) * (0.1 + 0.2 * (client % 4))
    return vector.astype(np.float64) * 0.9 + direction


def train(model: list[NDArray[Any]], data: int, context: Context) -> list[NDArray[Any]]:
    """Of lists of arrays, in float64, so that the simulator can do the very same."""
    vector = np.concatenate([part.astype(np.float64).ravel() for part in model])
    trained = moved(vector, data, int(context.run_config["gdpfed-round"]))
    return [trained[:12].reshape(3, 4), trained[12:]]


def number_in(context: Context) -> int:
    return int(Path(str(context.node_config["gdpfed-home"])).name.removeprefix("node"))


@functools.cache
def plan_for(
    sizes: tuple[int, ...],
    epsilons: tuple[float, ...],
    method: str,
    rounds: int,
    participation: float,
    cap: int | None,
    asks: int | None = None,
) -> Plan:
    """Plans are alike for all tests with the same clients."""
    listed = np.repeat(epsilons, sizes)
    budgets = Budgets(epsilons=listed, deltas=np.full(len(listed), DELTA), clients=tuple(map(str, range(len(listed)))))
    settings = PlanSettings(
        method=method,
        num_rounds=rounds,
        participation=participation,
        clip_norm=0.5,
        delta=DELTA,
        max_participations=cap,
    )
    if asks is not None:
        settings = dataclasses.replace(settings, against="server", asks=asks, trainings=participation * asks)
    return make_plan(budgets, settings)


@dataclass(eq=False)
class Federation:
    """A server's home, nodes' homes, and the apps."""

    root: Path
    sizes: tuple[int, ...] = (4, 4, 4)
    epsilons: tuple[float, ...] = (1.0, 2.0, 6.0)
    method: str = "gdpfed+"
    rounds: int = 2
    participation: float = 0.7
    cap: int | None = None
    asks: int | None = None
    test_seed: int | None = SEED
    settings: dict[str, Any] = field(default_factory=dict)
    # Of their budgets, what the plan spends.
    share: float = 1.0
    own_epsilons: dict[int, float] = field(default_factory=dict)
    # Numbers, if none are given.
    names: tuple[str, ...] = ()
    app: ClientApp | None = None

    def __post_init__(self) -> None:
        chosen = {"dropout_rate": 0.2, "start_seconds": 0.01, "poll_seconds": 0.001, "answer_seconds": 0.02}
        chosen |= self.settings
        for stage in ("announce", "keys", "shares", "input", "agree", "reveal"):
            chosen.setdefault(f"{stage}_seconds", 0.05)
        make_server_home(self.root / "server", settings=DeploymentSettings(test_seed=self.test_seed, **chosen))
        names = self.names or tuple(map(str, self.numbers))
        announced = [
            make_node_home(self.node_path(number), epsilon=float(epsilon), delta=DELTA, name=name, allow_test_mode=True)
            for number, (name, epsilon) in enumerate(zip(names, np.repeat(self.epsilons, self.sizes), strict=True))
        ]
        self.enrolment: Enrolment = enrol(self.root / "server", announced)
        for number in self.numbers:
            pin(self.node_path(number), self.root / "server" / "enrolment.json")
        spent = tuple(self.share * one for one in self.epsilons)
        self.plan = plan_for(self.sizes, spent, self.method, self.rounds, self.participation, self.cap, self.asks)
        set_plan(self.root / "server", self.plan)
        self.app = self.app or client_app(model=MODEL, data=number_in, train=train)

    @property
    def numbers(self) -> range:
        return range(sum(self.sizes))

    @property
    def home(self) -> ServerHome:
        return ServerHome(self.root / "server")

    def node_path(self, number: int) -> Path:
        return self.root / f"node{number}"

    def node(self, number: int) -> NodeHome:
        return NodeHome(self.node_path(number))

    def grid(
        self,
        *,
        deliver: Callable[[int, Message], bool] | None = None,
        disturb: Callable[[int, Message], Iterable[Message | Late]] | None = None,
        apps: Mapping[int, ClientApp] | None = None,
    ) -> InProcessGrid:
        """Nodes are numbered from FIRST_NODE; callbacks get the client's number."""
        assert self.app is not None
        nodes = {
            FIRST_NODE + number: LocalNode(
                app=(apps or {}).get(number, self.app), node_config={"gdpfed-home": str(self.node_path(number))}
            )
            for number in self.numbers
        }
        return InProcessGrid(
            nodes,
            deliver=None if deliver is None else lambda node, message: deliver(node - FIRST_NODE, message),
            disturb=None if disturb is None else lambda node, reply: disturb(node - FIRST_NODE, reply),
        )

    def serve(self, grid: InProcessGrid | None = None, *, fault: Fault | None = None) -> TrainingState:
        more = {} if fault is None else {"fault": fault}
        return serve(self.home, MODEL, grid or self.grid(), evaluate=lambda _: {"accuracy": 50.0, "loss": 1.0}, **more)

    def node_log(self, number: int) -> str:
        path = self.node_path(number) / "node.log"
        return path.read_text() if path.is_file() else ""

    @property
    def server_log(self) -> str:
        path = self.root / "server" / "server.log"
        return path.read_text() if path.is_file() else ""

    def ledger(self) -> Ledger:
        return Ledger.read(self.home.ledger_path)

    def states(self) -> dict[tuple[int, int], list[str]]:
        """The state of every attempt, by round and group."""
        run = self.ledger().state.run(self.home.run_name)
        return {place: [attempt.state for attempt in attempts] for place, attempts in sorted(run.attempts.items())}


def stage_of(message: Message) -> str:
    return message.metadata.message_type.split(".")[1]


@contextlib.contextmanager
def held_for(home: NodeHome, seconds: float) -> Iterator[None]:
    """As an input does that waits for its moment."""
    is_held = threading.Event()

    def wait_for_its_moment() -> None:
        with home.alone():
            is_held.set()
            time.sleep(seconds)

    waiting = threading.Thread(target=wait_for_its_moment)
    waiting.start()
    is_held.wait()
    yield
    waiting.join()
