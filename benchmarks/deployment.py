"""Latency and bytes of a round on six real SuperNodes: gdpfed beside Flower's own FedAvg and SecAgg+.

python benchmarks/deployment.py [--rounds 3] [--params 100000,1000000] [--fresh]

For each number of parameters one SuperLink and six SuperNodes are started on this machine, with ours (warm: forks of
one process) and with Flower's own executor, and the three contestants run on them one after the other. Nobody trains:
what is measured is the way of a vector to a sum. Results go to benchmarks/results/deployment.json; what is there
already is kept, unless --fresh.

A round lasts from its first message to the first message of the next (or the end of the run). The app's own share of it
is its time on a node (its imports, which a node repeats for every message, and its answers; the mean over the nodes for
each exchange, added up over the exchanges) and on the server (`flower_app/bench/measured.py` says what counts), divided
by the round. With the slowest node of each exchange instead of the mean it is `own_share_slowest`: nodes that wait for
the same two cores make it larger than what a machine of its own would see.
"""

import argparse
import compileall
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gdpfed
from gdpfed.errors import GdpfedError
from gdpfed.flower.operate.processes import LocalFlower
from gdpfed.flower.operate.up import Federation, UpSettings, prepare, start

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "deployment.json"
NODES = 6
# Exchanges of one round. What nodes announce before the first, and the keys of their first session, are left out.
CONTESTANTS = {"fedavg": 1, "secagg": 4, "ours": 4}
# The SuperLink keeps its state in memory, as Flower's does by default, or on the disk.
EXECUTORS = {
    "warm": {"is_warm": True},
    "warm, state on disk": {"is_warm": True, "keeps_state": True},
    "Flower's": {"is_warm": False},
}
_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "bench"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "gdpfed-bench"
[tool.flwr.app.components]
serverapp = "bench.{name}:server"
clientapp = "bench.{name}:client"
[tool.flwr.app.config]
gdpfed-home = ""
num-params = 1
rounds = 1
result = ""
timings = ""
"""


def main() -> None:
    """Runs what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--params", default="100000,1000000")
    parser.add_argument("--fresh", action="store_true")
    asked = parser.parse_args()
    # As an installation has it: nodes start a process for each message, and none should compile.
    compileall.compile_dir(Path(gdpfed.__file__).parent, quiet=1)
    record: dict[str, Any] = {"rows": []}
    if RESULTS.exists() and not asked.fresh:
        record = json.loads(RESULTS.read_text())
    for num_params in (int(word) for word in asked.params.split(",")):
        if any(row["num_params"] == num_params for row in record["rows"]):
            continue
        rows = [row for executor in EXECUTORS for row in measured(num_params, asked.rounds, executor)]
        record |= {"cores": os.cpu_count(), "nodes": NODES, "rounds": asked.rounds, "versions": _versions()}
        record["rows"] += rows
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")


def _versions() -> str:
    import flwr

    return f"flwr {flwr.__version__}, Python {sys.version.split()[0]}"


def measured(num_params: int, rounds: int, executor: str) -> list[dict[str, Any]]:
    """All contestants on the same nodes."""
    folder = Path(tempfile.mkdtemp(prefix="gdpfed-bench-"))
    federation = prepare(
        folder, UpSettings(nodes=NODES, rounds=rounds, method="gdpfed", participation=1.0, against="models")
    )
    rows = []
    with LocalFlower(folder, **EXECUTORS[executor]) as deployment:
        start(federation, deployment)
        for name in CONTESTANTS:
            rows.append({"executor": executor, **_run(name, num_params, rounds, federation, deployment)})
            print(json.dumps(rows[-1]), flush=True)
    shutil.rmtree(folder)
    return rows


def _run(name: str, num_params: int, rounds: int, federation: Federation, deployment: LocalFlower) -> dict[str, Any]:
    app = federation.folder / f"bench-{name}"
    shutil.copytree(HERE / "flower_app", app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "pyproject.toml").write_text(_PROJECT.format(name=name))
    result, timings = app / "exchanges.jsonl", app / "timings"
    timings.mkdir()
    config = {"gdpfed-home": federation.home.path, "num-params": num_params, "rounds": rounds}
    load = os.getloadavg()[0]
    run = deployment.submit(app, {**config, "result": result, "timings": timings})
    while not (status := _status(deployment, run)).startswith("finished"):
        time.sleep(5)
    if status != "finished:completed":
        raise SystemExit(f"{name} ended as {status}: see {federation.folder}")
    exchanges = [json.loads(line) for line in result.read_text().splitlines()]
    answers = [json.loads(line) for path in timings.iterdir() for line in path.read_text().splitlines()]
    return {
        "name": name,
        "num_params": num_params,
        "load": load,
        **_summary(CONTESTANTS[name], rounds, exchanges, answers),
    }


def _status(deployment: LocalFlower, run: int) -> str:
    """On a busy machine the question may take too long; the run that is measured goes on."""
    try:
        return deployment.status(run)
    except GdpfedError as error:
        if deployment.superlink is None or not deployment.superlink.is_alive:
            raise
        print(error, file=sys.stderr, flush=True)
        return "unknown"


def _summary(per_round: int, rounds: int, exchanges: list[Any], answers: list[Any]) -> dict[str, Any]:
    """Of the median round; what precedes the first round is left out."""
    exchanges = exchanges[-(per_round * rounds + 1) :]
    starts = range(0, per_round * rounds, per_round)
    made = [_round(exchanges[place : place + per_round + 1], answers) for place in starts]
    middle = {name: statistics.median(one[name] for one in made) for name in made[0]}
    kinds = {exchange["kind"] for exchange in exchanges}
    cpu = [answer for answer in answers if answer["kind"] in kinds]
    own_cpu = statistics.mean(answer["import_cpu"] + answer["answer_cpu"] for answer in cpu)
    total_cpu = statistics.mean(answer["total_cpu"] for answer in cpu)
    own = middle["import_seconds"] + middle["answer_seconds"]
    seconds, server = middle["seconds"], middle["server_seconds"]
    return {
        "exchanges": per_round,
        "seconds": round(seconds, 2),
        "fastest": round(min(one["seconds"] for one in made), 2),
        "up_bytes": round(middle["up"] / NODES),
        "down_bytes": round(middle["down"] / NODES),
        "server_seconds": round(server, 3),
        "start_seconds": round(middle["start_seconds"], 3),
        "import_seconds": round(middle["import_seconds"], 3),
        "answer_seconds": round(middle["answer_seconds"], 3),
        "own_share": round((own + server) / seconds, 4),
        "own_share_slowest": round((middle["slowest"] + server) / seconds, 4),
        "cpu_per_message": round(total_cpu, 3),
        "own_cpu_per_message": round(own_cpu, 3),
    }


def _round(exchanges: list[Any], answers: list[Any]) -> dict[str, float]:
    """One round; the last of ``exchanges`` begins the next."""
    *own, following = exchanges
    found: dict[str, float] = {
        "seconds": following["start"] - own[0]["start"] - (following["measuring_before"] - own[0]["measuring_before"]),
        "server_seconds": following["own_before"] - own[0]["own_before"],
        "up": sum(exchange["up"] for exchange in own),
        "down": sum(exchange["down"] for exchange in own),
        **dict.fromkeys(("start_seconds", "import_seconds", "answer_seconds", "slowest"), 0.0),
    }
    for exchange in own:
        given = [answer for answer in answers if exchange["start"] <= answer["end"] <= exchange["end"]]
        if len(given) != NODES:
            raise SystemExit(f"expected {NODES} answers to {exchange['kind']}, got {len(given)}")
        for name in ("start_seconds", "import_seconds", "answer_seconds"):
            found[name] += statistics.mean(answer[name] for answer in given)
        found["slowest"] += max(answer["import_seconds"] + answer["answer_seconds"] for answer in given)
    return found


if __name__ == "__main__":
    main()
