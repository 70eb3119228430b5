"""What it costs a run to be watched: python benchmarks/watching.py [--rounds 60] [--block 4] [--record FILE]

Trains the demonstration, 6,000 clients, once. Blocks of rounds are watched and not watched in turn: a server in a
process of its own is asked every two seconds, as the page of runs asks it, for the list and for the curves. Prints the
time of a trained client while watched over that while not, block by block and on average, and the processor time that
the server took of the run's. Before that: how long the planner's page takes to answer where the calibrations are in the
cache on the disk, but no answer is remembered. Needs the extras torch and serve.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx

from gdpfed.runs.loop import Progress
from gdpfed.runs.simulate import run_simulation
from gdpfed.runs.start import prepared_run
from gdpfed.tasks.task import DEMONSTRATION, load_task


def processor_seconds(process: int) -> float:
    """Of a process and those that it started."""
    children = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal() and _parent(int(entry)) == process]
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(processor_seconds, children))


def _parent(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return -1


# What a page may ask: a preset, budgets as text, every method's rates, the promise against the server.
PLANS = (
    {"source": "fmnist", "method": "pooled"},
    {"source": "cifar10", "method": "gdpfed+"},
    {"source": "500@0.8,300@2,200@5", "method": "gdpfed", "rounds": "100", "participation": "0.05"},
    {"source": "fmnist", "method": "pooled", "against": "server"},
)


class Watcher:
    """`gdpfed serve`, asked as a page asks it while ``watches`` is set."""

    def __init__(self, folder: Path, run: str) -> None:
        command = [sys.executable, "-m", "gdpfed", "serve", str(folder), "--no-browser", "--port", "0", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
        address = self._address()
        self._client = httpx.Client(base_url=address.partition("/?")[0], timeout=120)
        self._client.get(address)
        self._run, self._version, self.questions = run, "", 0
        self.watches = threading.Event()
        # What is read once is read before anything is measured.
        self.ask()
        threading.Thread(target=self._go_on, daemon=True).start()

    def _address(self) -> str:
        text = ""
        for line in self.process.stdout or ():
            text += line
            try:
                return str(json.loads(text)["address"])
            except ValueError:
                continue
        raise SystemExit("gdpfed serve did not start")

    def planned(self) -> list[float]:
        """Seconds until each of PLANS is there."""
        seconds = []
        for query in PLANS:
            began = time.perf_counter()
            last = json.loads(self._client.get("/api/plan", params=query).text.splitlines()[-1])
            if "plan" not in last:
                raise SystemExit(f"expected a plan, got {last}")
            seconds.append(time.perf_counter() - began)
        return seconds

    def end(self) -> None:
        """Ends the server."""
        self.process.terminate()
        self.process.wait()

    def ask(self) -> None:
        """What the page of runs asks, once."""
        found = self._client.get("/api/runs", params={"version": self._version}).json()
        if "runs" in found:
            self._version = found["version"]
            self._client.get("/api/curves", params={"run": self._run})
        self.questions += 1

    def _go_on(self) -> None:
        while self.watches.wait():
            self.ask()
            time.sleep(2.0)


def main() -> None:
    """Trains, and prints the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--block", type=int, default=4, help="rounds that are watched, or not, in a row")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--record", type=Path, help="write the result here, as JSON")
    asked = parser.parse_args()
    task = load_task(DEMONSTRATION)
    task = replace(task, settings=replace(task.settings, num_rounds=asked.rounds))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, simulation = prepared_run(task, seed=1, folder=folder / "run", num_workers=asked.workers)
        for _ in range(2):
            planning = Watcher(folder, "run")
            answers = planning.planned()
            planning.end()
        watcher = Watcher(folder, "run")
        rounds: list[tuple[bool, float, int, float]] = []
        before = time.perf_counter(), processor_seconds(watcher.process.pid)

        def told(progress: Progress) -> None:
            nonlocal before
            now = time.perf_counter(), processor_seconds(watcher.process.pid)
            clients = sum(progress.record.cohort)
            rounds.append((watcher.watches.is_set(), now[0] - before[0], clients, now[1] - before[1]))
            is_watched = (len(rounds) // asked.block) % 2 == 1
            watcher.watches.set() if is_watched else watcher.watches.clear()
            before = time.perf_counter(), processor_seconds(watcher.process.pid)

        started = processor_seconds(os.getpid()) - processor_seconds(watcher.process.pid)
        run_simulation(run, simulation, watch=told)
        trained = processor_seconds(os.getpid()) - processor_seconds(watcher.process.pid) - started
        watcher.end()
    # Pairs of blocks, not watched and then watched; the first warms up.
    blocks = [rounds[at : at + asked.block] for at in range(0, len(rounds), asked.block)]
    each = [sum(one[1] for one in block) / max(1, sum(one[2] for one in block)) for block in blocks]
    ratios = [watched / alone for alone, watched in zip(each[2::2], each[3::2], strict=False)]
    spread = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    served = sum(one[3] for one in rounds if one[0])
    of_run = trained * sum(one[2] for one in rounds if one[0]) / sum(one[2] for one in rounds)
    result = {
        "seconds_of_planner": [round(seconds, 3) for seconds in answers],
        "clients": len(task.budgets),
        "rounds": asked.rounds,
        "questions": watcher.questions,
        "time_watched_over_not": round(statistics.fmean(ratios), 4),
        "standard_error": round(spread, 4),
        "median": round(statistics.median(ratios), 4),
        "server_processor_seconds": round(served, 2),
        "run_processor_seconds_meanwhile": round(of_run, 2),
        "processor_share": round(served / of_run, 4),
    }
    print(json.dumps(result, indent=1))
    if asked.record:
        asked.record.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
