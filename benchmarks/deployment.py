"""Latency and bytes of a round on six real SuperNodes: gdpfed beside Flower's own FedAvg and SecAgg+.

python benchmarks/deployment.py [--rounds 3] [--params 100000,1000000] [--fresh]

For each number of parameters one SuperLink and six SuperNodes are started on this machine, and the three contestants
run on them one after the other. Nobody trains: what is measured is the way of a vector to a sum. Results go to
benchmarks/results/deployment.json; what is there already is kept, unless --fresh.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gdpfed.flower.processes import Deployment
from gdpfed.flower.up import Federation, UpSettings, prepare, start

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "deployment.json"
NODES = 6
# Exchanges of one round, and messages before the first.
CONTESTANTS = {"fedavg": 1, "secagg": 4, "ours": 5}
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
    record: dict[str, Any] = {"rows": []}
    if RESULTS.exists() and not asked.fresh:
        record = json.loads(RESULTS.read_text())
    for num_params in (int(word) for word in asked.params.split(",")):
        if any(row["num_params"] == num_params for row in record["rows"]):
            continue
        rows = measured(num_params, asked.rounds)
        record |= {"cores": os.cpu_count(), "nodes": NODES, "rounds": asked.rounds, "versions": _versions()}
        record["rows"] += rows
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
        for row in rows:
            print(json.dumps(row), flush=True)


def _versions() -> str:
    import flwr

    return f"flwr {flwr.__version__}, Python {sys.version.split()[0]}"


def measured(num_params: int, rounds: int) -> list[dict[str, Any]]:
    """All contestants on the same nodes."""
    folder = Path(tempfile.mkdtemp(prefix="gdpfed-bench-"))
    federation = prepare(folder, UpSettings(nodes=NODES, rounds=rounds, method="gdpfed", participation=1.0))
    rows = []
    with Deployment(folder) as deployment:
        start(federation, deployment)
        for name in CONTESTANTS:
            rows.append(_run(name, num_params, rounds, federation, deployment))
    shutil.rmtree(folder)
    return rows


def _run(name: str, num_params: int, rounds: int, federation: Federation, deployment: Deployment) -> dict[str, Any]:
    app = federation.folder / f"bench-{name}"
    shutil.copytree(HERE / "flower_app", app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "pyproject.toml").write_text(_PROJECT.format(name=name))
    result, timings = app / "exchanges.jsonl", app / "timings"
    timings.mkdir()
    settings = f'num-params={num_params} rounds={rounds} result="{result}" timings="{timings}"'
    load = os.getloadavg()[0]
    run = deployment.submit(app, home=federation.home.path, settings=settings)
    while not (status := deployment.status(run)).startswith("finished"):
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


def _summary(per_round: int, rounds: int, exchanges: list[Any], answers: list[Any]) -> dict[str, Any]:
    """Medians over the rounds; the share of latency that is spent in the app's own imports, answers and server."""
    exchanges = exchanges[-per_round * rounds :]
    kinds = {exchange["kind"] for exchange in exchanges}
    answers = [answer for answer in answers if answer["kind"] in kinds]
    parts = [exchanges[place * per_round : (place + 1) * per_round] for place in range(rounds)]
    waits = [sum(exchange["end"] - exchange["start"] for exchange in part) for part in parts]
    between = [part[-1]["end"] - part[0]["start"] - wait for part, wait in zip(parts, waits, strict=True)]
    seconds = [wait + gap for wait, gap in zip(waits, between, strict=True)]
    own = statistics.mean(answer["import_seconds"] + answer["answer_seconds"] for answer in answers)
    cpu = statistics.mean(answer["import_cpu"] + answer["answer_cpu"] for answer in answers)
    total_cpu = statistics.mean(answer["total_cpu"] for answer in answers)
    latency = statistics.median(seconds)
    return {
        "exchanges": per_round,
        "seconds": round(latency, 2),
        "fastest": round(min(seconds), 2),
        "up_bytes": round(statistics.mean(sum(e["up"] for e in part) for part in parts) / NODES),
        "down_bytes": round(statistics.mean(sum(e["down"] for e in part) for part in parts) / NODES),
        "server_seconds": round(statistics.median(between), 3),
        "own_seconds_on_node": round(own * per_round, 3),
        "own_share": round((own * per_round + statistics.median(between)) / latency, 4),
        "cpu_per_message": round(total_cpu, 3),
        "own_cpu_per_message": round(cpu, 3),
        "own_cpu_share": round(cpu / total_cpu, 4),
    }


if __name__ == "__main__":
    main()
