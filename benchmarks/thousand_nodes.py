"""The deployment's apps on Flower's simulation runtime: a thousand nodes, of which one in ten vanishes in every round.

python benchmarks/thousand_nodes.py [--nodes 1000] [--rounds 3] [--dropout 0.1] [--participation 0.1]

Every simulated node has a home of its own: its identity, budget and ledger. A node vanishes by an error at a random
stage. Needs ray (pip install 'flwr[simulation]'). Results go to benchmarks/results/thousand_nodes.json.
"""

import argparse
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default: starved on a busy machine
}

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from gdpfed.flower import client_app, server_app
from gdpfed.flower.node.node_home import make_node_home, pin
from gdpfed.flower.operate.between_runs import enrol, set_plan
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.server_home import ServerHome, make_server_home
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.runs.folder import open_run

RESULTS = Path(__file__).parent / "results" / "thousand_nodes.json"
EXCHANGES = 5
NUM_PARAMS = 10_000
EPSILONS = (1.0, 3.0, 8.0)


def _settings(dropout: float) -> DeploymentSettings:
    """With time enough for actors to start, on a busy machine too."""
    return DeploymentSettings(
        dropout_rate=dropout, poll_seconds=0.5, start_seconds=900.0, announce_seconds=900.0, keys_seconds=900.0
    )


def prepare(folder: Path, *, nodes: int, rounds: int, dropout: float, participation: float) -> ServerHome:
    """Homes of a server and of all nodes, numbered as Flower numbers partitions."""
    home = make_server_home(folder / "server", settings=_settings(dropout))
    announcements = [
        make_node_home(
            folder / "nodes" / str(number),
            epsilon=EPSILONS[number * len(EPSILONS) // nodes],
            delta=1e-5,
            name=f"node{number}",
        )
        for number in range(nodes)
    ]
    enrolment = enrol(home.path, announcements)
    plan = make_plan(enrolment.budgets, PlanSettings(num_rounds=rounds, participation=participation))
    set_plan(home.path, plan)
    # Every owner would verify all signatures; here the first one does, and the others copy its files.
    pin(folder / "nodes" / "0", enrolment.as_json())
    for number in range(1, nodes):
        for name in ("server.pub", "enrolment.json", "enrolment.sha256"):
            shutil.copy(folder / "nodes" / "0" / name, folder / "nodes" / str(number) / name)
    return home


def _model(context: Context) -> list[Any]:
    del context
    return [np.zeros(NUM_PARAMS, np.float32)]


def _train(model: list[Any], data: object, context: Context) -> list[Any]:
    del data, context
    return [array + np.float32(0.01) for array in model]


class Unreliable(ClientApp):
    """Calls another ClientApp, but fails now and then."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self._inner = client_app(model=_model, data=lambda _: None, train=_train)
        self._failing = 1 - (1 - dropout) ** (1 / EXCHANGES)

    def __call__(self, message: Message, context: Context) -> Message:
        """The answer of the other, or an error."""
        if message.metadata.message_type.startswith("train.") and random.random() < self._failing:  # noqa: S311
            raise RuntimeError("vanished, on purpose")
        return self._inner(message, context)


def start_ray() -> None:
    """Before Flower does, on loopback: Ray gives itself 30 s to start, which a busy machine may need several times."""
    import ray

    # Actors find the modules that this process found.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    for attempt in range(6):
        try:
            ray.init(num_cpus=os.cpu_count(), include_dashboard=False, _node_ip_address="127.0.0.1")
        except Exception as error:
            print(f"ray did not start: {error}", flush=True)
            ray.shutdown()
            if attempt == 5:
                raise
        else:
            return


def main() -> None:
    """Runs it, prints and writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--participation", type=float, default=0.1)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gdpfed-thousand-"))
    # Where simulated nodes find their homes; before Ray, whose actors inherit it.
    os.environ["GDPFED_FLOWER_NODE_HOMES"] = str(folder / "nodes")
    start_ray()
    started = time.time()
    home = prepare(
        folder, nodes=asked.nodes, rounds=asked.rounds, dropout=asked.dropout, participation=asked.participation
    )
    prepared = time.time()
    print(f"{asked.nodes} homes in {prepared - started:.0f} s, in {folder}", flush=True)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        context.run_config = {**context.run_config, "gdpfed-home": str(home.path)}
        server_app(model=_model)(grid, context)

    run_simulation(
        server_app=server,
        client_app=Unreliable(asked.dropout),
        num_supernodes=asked.nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )
    record = summary(home, seconds=time.time() - prepared)
    record |= {"nodes": asked.nodes, "dropout": asked.dropout, "participation": asked.participation}
    record |= {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    print(json.dumps(record, indent=1))
    if asked.nodes >= 1000:
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    shutil.rmtree(folder)


def summary(home: ServerHome, *, seconds: float) -> dict[str, Any]:
    """What happened, from the events, the records and the ledger."""
    events = [json.loads(line) for line in (home.path / "progress.jsonl").read_text().splitlines()]
    ledger = Ledger.read(home.ledger_path)
    run = open_run(home.run_path)
    timing = [json.loads(line) for line in (home.run_path / "timing.jsonl").read_text().splitlines()]
    count = {kind: sum(event["event"] == kind for event in events) for kind in ("answered", "dropped", "refused")}
    sums = {kind: sum(event["event"] == kind for event in events) for kind in ("released", "aborted", "given up")}
    return {
        "is_finished": run.is_finished,
        "rounds": len(timing),
        "seconds": round(seconds, 1),
        "seconds_per_round": [round(row["seconds"], 1) for row in timing],
        "asked": sum(len(event["asked"]) for event in events if event["event"] == "stage" and event["stage"] == "keys"),
        **count,
        **sums,
        "epsilons": list(ledger.spent_by_group(ledger.state.run(home.run_name)).values()),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


if __name__ == "__main__":
    main()
