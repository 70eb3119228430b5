"""The deployment's apps on Flower's simulation runtime: a thousand nodes, of which one in ten vanishes in every round.

python benchmarks/thousand_nodes.py [--nodes 1000] [--rounds 3] [--dropout 0.1] [--participation 0.1]
python benchmarks/thousand_nodes.py --asks 10 [--params 100000] [--nodes 1000]

Every simulated node has a home of its own: its identity, budget and ledger. A node vanishes by an error at a random
stage. Needs ray (pip install 'flwr[simulation]'). Results go to benchmarks/results/thousand_nodes.json.

With ``--asks`` K: the first round of a rotation of 50, against the server, and what an ask costs a client; nobody
vanishes. Results go to benchmarks/results/asks.json, one entry for each K.
"""

import argparse
import contextlib
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
from gdpfed.flower.shared.carrier import packet_in
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.runs.folder import open_run

RESULTS = Path(__file__).parent / "results"
EXCHANGES = 5
ROTATION = 50
EPSILONS = (1.0, 3.0, 8.0)


def _settings(dropout: float) -> DeploymentSettings:
    """With time enough for actors to start, on a busy machine too; an actor that waits for a moment does nothing."""
    names = ("start", "announce", "keys", "shares", "input", "agree", "reveal")
    seconds: dict[str, Any] = {f"{name}_seconds": 7200.0 for name in names}
    return DeploymentSettings(dropout_rate=dropout, poll_seconds=0.5, answer_seconds=0.2, **seconds)


def prepare(folder: Path, settings: PlanSettings, *, nodes: int, dropout: float) -> ServerHome:
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
    set_plan(home.path, make_plan(enrolment.budgets, settings))
    # Every owner would verify all signatures; here the first one does, and the others copy its files.
    pin(folder / "nodes" / "0", enrolment.as_json())
    for number in range(1, nodes):
        for name in ("server.pub", "enrolment.json", "enrolment.sha256"):
            shutil.copy(folder / "nodes" / "0" / name, folder / "nodes" / str(number) / name)
    return home


def _train(model: list[Any], data: object, context: Context) -> list[Any]:
    del data, context
    return [array + np.float32(0.01) for array in model]


class Unreliable(ClientApp):
    """Calls another ClientApp, but fails now and then; notes what its answers cost."""

    def __init__(self, dropout: float, num_params: int, notes: Path) -> None:
        super().__init__()
        model = [np.zeros(num_params, np.float32)]
        self._inner = client_app(model=model, data=lambda _: None, train=_train)
        self._failing = 1 - (1 - dropout) ** (1 / EXCHANGES)
        self._notes = notes

    def __call__(self, message: Message, context: Context) -> Message:
        """The answer of the other, or an error."""
        stage = message.metadata.message_type
        if stage.startswith("train.") and random.random() < self._failing:  # noqa: S311
            raise RuntimeError("vanished, on purpose")
        began = time.process_time()
        answer = self._inner(message, context)
        cost = {"stage": stage, "cpu": time.process_time() - began}
        cost |= {"down": len(packet_in(message)), "up": len(packet_in(answer))}
        with (self._notes / str(os.getpid())).open("a") as file:
            file.write(json.dumps(cost) + "\n")
        return answer


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
    parser.add_argument("--params", type=int, default=10_000)
    parser.add_argument("--asks", type=int)
    asked = parser.parse_args()
    settings = PlanSettings(num_rounds=asked.rounds, participation=asked.participation)
    if asked.asks:
        settings = PlanSettings(method="pooled", num_rounds=ROTATION, against="server", asks=asked.asks)
    folder = Path(tempfile.mkdtemp(prefix="gdpfed-thousand-"))
    # Where simulated nodes find their homes; before Ray, whose actors inherit it.
    os.environ["GDPFED_FLOWER_NODE_HOMES"] = str(folder / "nodes")
    start_ray()
    started = time.time()
    home = prepare(folder, settings, nodes=asked.nodes, dropout=asked.dropout)
    notes = folder / "costs"
    notes.mkdir()
    prepared = time.time()
    print(f"{asked.nodes} homes in {prepared - started:.0f} s, in {folder}", flush=True)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        context.run_config = {**context.run_config, "gdpfed-home": str(home.path)}
        model = [np.zeros(asked.params, np.float32)]
        server_app(model=model, evaluate=_stop if asked.asks else None)(grid, context)

    with contextlib.suppress(StopError) if asked.asks else contextlib.nullcontext():
        run_simulation(
            server_app=server,
            client_app=Unreliable(0.0 if asked.asks else asked.dropout, asked.params, notes),
            num_supernodes=asked.nodes,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
        )
    seconds = time.time() - prepared
    common = {"nodes": asked.nodes, "load": os.getloadavg()[0], "cores": os.cpu_count()}
    if asked.asks:
        path, record = RESULTS / "asks.json", common | {"num_params": asked.params} | cost_of_an_ask(notes, seconds)
        whole = (json.loads(path.read_text()) if path.is_file() else {}) | {str(asked.asks): record}
    else:
        path, record = RESULTS / "thousand_nodes.json", common | summary(home, seconds=seconds)
        whole = record | {"dropout": asked.dropout, "participation": asked.participation}
    print(json.dumps(record, indent=1))
    if asked.nodes >= 1000:
        path.write_text(json.dumps(whole, indent=1) + "\n")
    shutil.rmtree(folder)


class StopError(Exception):
    """After the first round."""


def _stop(*_: object) -> dict[str, float]:
    raise StopError


def cost_of_an_ask(notes: Path, seconds: float) -> dict[str, float]:
    """A client's CPU seconds and bytes for one round in which it is asked, over all its answers but the first."""
    costs = [json.loads(line) for path in notes.iterdir() for line in path.read_text().splitlines()]
    costs = [cost for cost in costs if cost["stage"].startswith("train.")]
    asks = sum(cost["stage"] == "train.input" for cost in costs)
    found = {name: sum(cost[name] for cost in costs) / asks for name in ("cpu", "up", "down")}
    return {"asks": asks, "seconds": round(seconds, 1), **found}


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
