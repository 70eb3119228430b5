"""A whole federation on this machine, for a moment: keys, homes, a plan, Flower's processes, a training, and away.

Place: operations, over homes, project and processes; `gdpfed flower up` is a few lines over `prepare` and `run`. It is
what an operator and six clients would do on seven machines, with the same programs and the same files.

Guarantees (tests of the same name):
  up_takes_everything_down   exit code 0, and no process and no port is left, also after Ctrl-C and SIGKILL.
  up_reads_like_a_simulation   gdpfed show, report and ledger read what it leaves behind.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import GdpfedError, InputError
from gdpfed.files import missing, nothing_left
from gdpfed.flower.node.node_home import make_node_home, pin
from gdpfed.flower.operate.between_runs import enrol, set_plan
from gdpfed.flower.operate.certificates import make_node_key
from gdpfed.flower.operate.processes import LocalFlower
from gdpfed.flower.operate.progress import EventReader, RunProgress, after
from gdpfed.flower.operate.project import check_project, write_project
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.events import EVENTS
from gdpfed.flower.server.server_home import ServerHome, make_server_home
from gdpfed.flower.shared.leaning import SERVERAPP
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import Against, PlanSettings

__all__ = ["Federation", "UpSettings", "Watcher", "follow", "prepare", "run", "start", "start_node", "submit"]

_EXAMPLES = 600
_MOST_NODES = 1000
_DATA_SEED = 1
_TEST_DATA = "public-test.npz"
_POLL_SECONDS = 0.2
# Flower starts the ServerApp a moment after a run was submitted.
_SERVER_APP_SECONDS = 90.0
_SILENCE_SECONDS = 5.0

Watcher = Callable[[RunProgress], None]


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """What to show: how many nodes, in three groups of budgets unless told otherwise, for how many rounds.

    Against the server everybody is asked in every round, and tosses a coin: so few nodes hide nothing otherwise.
    """

    nodes: int = 6
    rounds: int = 3
    method: str = "gdpfed+"
    participation: float = 0.5
    epsilons: tuple[float, ...] = (2.0, 8.0, 20.0)
    delta: float = 1e-3
    against: Against = "server"
    answer_seconds: float = 6.0

    def __post_init__(self) -> None:
        if not len(self.epsilons) <= self.nodes <= _MOST_NODES:
            least = f"at least a node for each of {len(self.epsilons)} budgets, and at most {_MOST_NODES}"
            raise InputError(f"expected {least} on one machine, got {self.nodes}")
        if self.rounds < 1:
            raise InputError(f"expected rounds >= 1, got rounds={self.rounds}")

    def epsilon_of(self, node: int) -> float:
        """The budgets in equal parts, the strictest first."""
        return self.epsilons[node * len(self.epsilons) // self.nodes]


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Prepared: homes of a server and of nodes, a plan, an app, and data."""

    folder: Path
    app: Path
    nodes: tuple[str, ...]
    plan: Plan

    @property
    def home(self) -> ServerHome:
        """The server's."""
        return ServerHome(self.folder / "server")

    def node_home(self, name: str) -> Path:
        """A node's home."""
        return self.folder / "nodes" / name


def prepare(
    folder: Path, settings: UpSettings, *, app: Path | None = None, deployment: DeploymentSettings | None = None
) -> Federation:
    """Makes keys, homes, data and a plan in ``folder``, as an operator and the clients do before the first run.

    Without an ``app``, the project of `project.write_project` is written there too.
    """
    planned = PlanSettings(method=settings.method, num_rounds=settings.rounds, participation=settings.participation)
    if settings.against == "server":
        trainings = settings.participation * settings.rounds
        planned = dataclasses.replace(planned, against="server", asks=settings.rounds, trainings=trainings)
    folder = folder.absolute()
    with nothing_left(missing(*(folder / name for name in ("app", "nodes", "server", _TEST_DATA)))):
        return _prepared(folder, settings, planned, app, deployment)


def _prepared(
    folder: Path, settings: UpSettings, planned: PlanSettings, app: Path | None, deployment: DeploymentSettings | None
) -> Federation:
    if (folder / "server").exists():
        raise InputError(f"{str(folder)!r} has a federation already: choose another folder")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    app = check_project(app) if app is not None else write_project(folder / "app")[0].parent
    names = tuple(f"node{number + 1}" for number in range(settings.nodes))
    _deal_data(folder, names)
    deployment = deployment or DeploymentSettings(answer_seconds=settings.answer_seconds)
    home = make_server_home(folder / "server", settings=deployment)
    announcements = [
        make_node_home(
            folder / "nodes" / name,
            epsilon=settings.epsilon_of(number),
            delta=settings.delta,
            against=settings.against,
        )
        for number, name in enumerate(names)
    ]
    enrolment = enrol(home.path, announcements)
    plan = make_plan(enrolment.budgets, planned)
    set_plan(home.path, plan)
    for name in names:
        pin(folder / "nodes" / name, enrolment.as_json())
        make_node_key(folder / "nodes" / name)
    return Federation(folder=folder, app=app, nodes=names, plan=plan)


def run(federation: Federation, deployment: LocalFlower, watch: Watcher) -> RunProgress:
    """Starts everything in ``deployment``, runs the app to its end, and returns the last progress."""
    start(federation, deployment)
    number = submit(federation, deployment)
    return follow(federation, deployment, watch, run=number)


def start(federation: Federation, deployment: LocalFlower) -> None:
    """Starts the SuperLink, registers the nodes' keys, and starts the nodes; returns when all are online."""
    deployment.start_superlink()
    deployment.register([federation.node_home(name) / "node.pub" for name in federation.nodes])
    for name in federation.nodes:
        start_node(federation, deployment, name)
    deployment.await_connected(federation.nodes)


def start_node(federation: Federation, deployment: LocalFlower, name: str) -> None:
    """Starts one node (again)."""
    home = federation.node_home(name)
    deployment.start_node(name, key=home / "node.key", config={"gdpfed-home": home, "data": home / "data.npz"})


def submit(federation: Federation, deployment: LocalFlower) -> int:
    """Starts the run, or goes on with it; returns Flower's number of it."""
    config = {"gdpfed-home": federation.home.path, "test-data": federation.folder / _TEST_DATA}
    return deployment.submit(federation.app, config)


def follow(federation: Federation, deployment: LocalFlower, watch: Watcher, *, run: int) -> RunProgress:
    """Tells ``watch`` what happens until the run has ended; raises if it ended badly."""
    reader = EventReader(federation.home.path / EVENTS)
    progress = RunProgress()
    submitted = last_event = last_look = time.monotonic()
    was_seen = False
    while not progress.ended:
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        for event in reader.new():
            progress = after(progress, event)
            watch(progress)
            last_event = now
        if min(now - last_event, now - last_look) < _SILENCE_SECONDS:
            continue
        last_look = now
        if deployment.superlink is None or not deployment.superlink.is_alive:
            raise GdpfedError(f"the SuperLink ended in the middle of the run: see {deployment.logs / 'superlink.log'}")
        is_seen = bool(deployment.superlink.find(SERVERAPP))
        was_seen = was_seen or is_seen
        if not is_seen and (was_seen or now - submitted > _SERVER_APP_SECONDS):
            said = deployment.log_of(run)
            raise GdpfedError(f"the ServerApp ended before the run did: see {deployment.logs}; it said: {said}")
    return progress


def _deal_data(folder: Path, names: tuple[str, ...]) -> None:
    """Every node's own examples, and public ones for the server: small pictures of clothes from the package."""
    from gdpfed.streams import generator
    from gdpfed.tasks.datasets import load_dataset
    from gdpfed.tasks.partitions import partition_iid

    data = load_dataset("fmnist-mini")
    parts = partition_iid(
        len(data.train_labels), len(names), generator=generator(_DATA_SEED, "partition", round_number=0, client=0)
    )
    for name, part in zip(names, parts, strict=True):
        path = folder / "nodes" / name / "data.npz"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        chosen = part[:_EXAMPLES]
        np.savez(path, pictures=_small(data.train_inputs[chosen]), labels=data.train_labels[chosen])
    np.savez(folder / _TEST_DATA, pictures=_small(data.test_inputs), labels=data.test_labels)


def _small(pictures: NDArray[np.float32]) -> NDArray[np.float32]:
    """28 by 28 pixels to 7 by 7: every parameter of the model gets noise, so a small model is a better one."""
    means: NDArray[np.float32] = pictures.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4), dtype=np.float32)
    return means.reshape(-1, 49)
