"""How fast gdpfed's simulator is, against a plain PyTorch loop, pfl-research and Flower's simulation, in one run.

    python benchmarks/simulators.py [--repeats 3] [--rounds 5] [--only gdpfed,pfl]
    python benchmarks/simulators.py --check      the same mathematics? Without noise, the models must agree
    python benchmarks/simulators.py --scaling    how gdpfed's time and memory grow with clients and with the cohort
    python benchmarks/simulators.py --ray        what Ray costs: the local engine and a cluster, same cores, in turns
    python benchmarks/simulators.py --record benchmarks/results/simulators.json      for docs/benchmarks.md

    python benchmarks/simulators.py --task cifar10 [--clients 12] [--check]          another preset: `peers/tasks.py`
    python benchmarks/simulators.py --task all --rounds 3 --record benchmarks/results/simulators-tasks.json

The work is the FMNIST preset's round, or another's; a round of SVHN, CIFAR-10 and Shakespeare trains fewer clients than
the preset's, or a plain loop would take minutes. Flower does FMNIST alone: it starts for as long as all others run.
`--task all` leaves out Flower and what uses one core, and takes about ten minutes of two quiet ones.

Every contestant is a process of its own, pfl and Flower in environments of their own (.venv-pfl, .venv-flower: made on
the first run, which downloads about 500 MB), all with the same version of PyTorch. Contestants take turns; their first
round is a warm-up and counts as start-up.

Only ratios mean anything on a shared machine, and those only while nobody else works on it: two threads that wait for
each other get twenty times slower when one of them is put aside. Before each run we wait up to `--patience` seconds for
a quiet machine; rounds during which other processes kept more than 0.15 cores busy are left out; a contestant that has
fewer than three others is marked with a star, and all its rounds are used.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers import work
from peers.tasks import TASKS, Task, floating_point_operations, num_parameters

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CORES = len(os.sched_getaffinity(0))
TORCH = torch.__version__.partition("+")[0]
# Cores that others may keep busy in a round that counts, and how many such rounds a median needs.
QUIET = 0.15
ENOUGH_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A script under peers/, the environment that runs it, and how many processes or threads train."""

    name: str
    module: str
    workers: int
    packages: tuple[str, ...] = ()
    environment: str | None = None
    tasks: tuple[str, ...] = tuple(TASKS)

    @property
    def is_ours(self) -> bool:
        """Whether it runs in this environment."""
        return self.environment is None


PFL = ("pfl==0.6.0", f"torch=={TORCH}")
FLOWER = ("flwr[simulation]==1.41.0", f"torch=={TORCH}")
CONTESTANTS = (
    Contestant(name="gdpfed", module="peers.gdpfed_peer", workers=CORES),
    Contestant(name="plain loop, one process", module="peers.plain_peer", workers=1),
    Contestant(name=f"plain loop, {CORES} processes", module="peers.plain_peer", workers=CORES),
    Contestant(name="pfl, one worker", module="peers.pfl_peer", workers=1, packages=PFL, environment=".venv-pfl"),
    Contestant(
        name=f"pfl, {CORES} workers", module="peers.pfl_peer", workers=CORES, packages=PFL, environment=".venv-pfl"
    ),
    Contestant(
        name=f"Flower, {CORES} actors",
        module="peers.flower_peer",
        workers=CORES,
        packages=FLOWER,
        environment=".venv-flower",
        tasks=("fmnist",),
    ),
)


class NotRunError(Exception):
    """Why a contestant has no result."""


def last_line(text: str) -> str:
    """The line in which a program usually says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("WARNING")]
    return lines[-1][:200] if lines else "it said nothing"


def interpreter(contestant: Contestant) -> str:
    """The Python of its environment, which is made if it is not there."""
    if contestant.environment is None:
        return sys.executable
    folder = ROOT / contestant.environment
    python = folder / "bin" / "python"
    ready = folder / "ready.txt"
    wanted = "\n".join(contestant.packages) + "\n"
    if ready.exists() and ready.read_text() == wanted:
        return str(python)
    print(f"making {folder} with {', '.join(contestant.packages)} ...", file=sys.stderr)
    try:
        venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotRunError(f"no environment {folder}: {error}") from error
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *contestant.packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NotRunError(f"pip install {' '.join(contestant.packages)}: {last_line(done.stderr)}")
    ready.write_text(wanted)
    return str(python)


def kill_tree(process: int) -> None:
    """Ends a process that we started, and those that it started."""
    for each in reversed(list(work.process_tree(process))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def wait_for_quiet(patience: float) -> None:
    """Until other processes leave the cores alone for three seconds, or patience is at its end."""
    neighbours = work.Neighbours()
    until = time.perf_counter() + patience
    while time.perf_counter() < until:
        neighbours.begin()
        time.sleep(3)
        if neighbours.cores_busy() < QUIET:
            return


def run_module(python: str, module: str, arguments: list[str], *, ours: bool, threads: int, timeout: float) -> Any:
    """Runs a script under peers/ and reads its line of JSON."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    environment.pop("PYTHONPATH", None)
    # As the cluster: on loopback Ray must not look for it at the other address of this machine.
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if ours:
        environment["PYTHONPATH"] = str(ROOT / "src")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(  # noqa: S603
            [python, "-m", module, *arguments], cwd=HERE, env=environment, stdout=out, stderr=errors
        )
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise NotRunError(f"no result after {timeout:.0f} s") from None
        finally:
            if child.poll() is None:
                kill_tree(child.pid)
                child.wait()
        out.seek(0)
        errors.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
        if child.returncode or not lines:
            raise NotRunError(f"exit code {child.returncode}: {last_line(errors.read())}")
        return json.loads(lines[-1])


def run_contestant(contestant: Contestant, task: Task, arguments: list[str], *, timeout: float) -> Any:
    """One run of a contestant."""
    threads = 1 if contestant.name == "gdpfed" else max(1, CORES // contestant.workers)
    return run_module(
        interpreter(contestant),
        contestant.module,
        ["--task", task.name, "--clients", str(task.clients), "--workers", str(contestant.workers), *arguments],
        ours=contestant.is_ours,
        threads=threads,
        timeout=timeout,
    )


def matmul_peak() -> float:
    """Float32 operations a second of this machine's matrix product, all cores, the best of many."""
    torch.set_num_threads(CORES)
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(30):
        began = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - began)
    return 2 * 1024**3 / best


def versions(chosen: list[Contestant]) -> str:
    """Of the packages that are compared."""
    found = {f"torch {TORCH}"}
    for contestant in chosen:
        for package in contestant.packages:
            found.add(package.replace("==", " "))
    return ", ".join(sorted(found))


def undisturbed(results: list[Any]) -> tuple[list[float], bool]:
    """The seconds of the rounds that count, and whether they are undisturbed. Others' work decides, not the time."""
    rounds = [
        pair for each in results for pair in zip(each["seconds_per_round"], each["others_per_round"], strict=True)
    ]
    quiet = [seconds for seconds, others in rounds if others < QUIET]
    return (quiet, True) if len(quiet) >= ENOUGH_ROUNDS else ([seconds for seconds, _ in rounds], False)


def ratios(ours: list[Any], theirs: list[Any]) -> dict[str, float]:
    """How many times our seconds: of each turn, its medians'; the median, the lowest and the highest of the turns."""
    found = [
        statistics.median(undisturbed([other])[0]) / statistics.median(undisturbed([own])[0])
        for own, other in zip(ours, theirs, strict=False)
    ]
    all_turns = {"ratio": statistics.median(found), "lowest_ratio": min(found), "highest_ratio": max(found)}
    return {name: round(value, 2) for name, value in all_turns.items()}


def compare(
    task: Task, chosen: list[Contestant], *, repeats: int, rounds: int, timeout: float, patience: float
) -> dict[str, Any]:
    """Runs the contestants in turns, and returns the numbers of the table."""
    results: dict[str, list[Any]] = {contestant.name: [] for contestant in chosen}
    failures: dict[str, str] = {}
    peak = matmul_peak()
    for repeat in range(repeats):
        for contestant in chosen:
            if contestant.name in failures:
                continue
            wait_for_quiet(patience)
            try:
                result = run_contestant(contestant, task, ["--rounds", str(rounds)], timeout=timeout)
            except NotRunError as error:
                failures[contestant.name] = str(error)
                continue
            results[contestant.name].append(result)
            median, others = (statistics.median(result[key]) for key in ("seconds_per_round", "others_per_round"))
            so_far = f"{median:.3f} s a round, others busy on {others:.2f} cores"
            print(f"{task.name} {repeat + 1}/{repeats} {contestant.name}: {so_far}", file=sys.stderr)
        peak = max(peak, matmul_peak())
    return measured(task, chosen, results, failures, peak)


def measured(
    task: Task, chosen: list[Contestant], results: dict[str, list[Any]], failures: dict[str, str], peak: float
) -> dict[str, Any]:
    """The table's numbers, as the record keeps them."""
    ours = [] if "gdpfed" in failures else results.get("gdpfed", [])
    rows: list[dict[str, Any]] = []
    for contestant in chosen:
        name = contestant.name
        if name in failures:
            rows.append({"name": name, "not_run": failures[name]})
            continue
        seconds, quiet = undisturbed(results[name])
        row = {
            "name": name,
            "rounds": len(seconds),
            "seconds_per_round": round(statistics.median(seconds), 4),
            "fastest": round(min(seconds), 4),
            "quiet": quiet,
            "startup_seconds": round(statistics.median(each["startup_seconds"] for each in results[name]), 1),
            "peak_memory_mb": round(max(each["peak_memory_mb"] for each in results[name])),
        }
        if ours and name != "gdpfed":
            row |= ratios(ours, results[name])
        rows.append(row)
    return {
        "task": task.name,
        "title": task.title,
        "model": task.model,
        "parameters": num_parameters(task),
        "num_clients": task.num_clients,
        "preset_cohort": task.cohort,
        "clients_per_round": task.clients,
        "local_steps": task.local_steps,
        "batch_size": task.batch_size,
        "gflop_per_round": round(floating_point_operations(task) / 1e9, 2),
        "matmul_peak_gflop_per_second": round(peak / 1e9),
        "contestants": rows,
    }


def keep(path: Path, chosen: list[Contestant], tables: list[dict[str, Any]]) -> None:
    """The tables' numbers as a small file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"cores": CORES, "versions": versions(chosen), "tasks": tables}
    path.write_text(json.dumps(content, indent=2) + "\n")


def print_table(table: dict[str, Any]) -> None:
    """The result, with the contestants in their order."""
    rows = {row["name"]: row for row in table["contestants"]}
    operations, peak = table["gflop_per_round"], table["matmul_peak_gflop_per_second"]
    print(
        f"\n{table['title']} preset, {table['model']}: {table['clients_per_round']} of {table['num_clients']:,} "
        f"clients a round (the preset's: {table['preset_cohort']}), {table['local_steps']} steps of batch "
        f"{table['batch_size']}, {operations:.1f} GFLOP a round"
    )
    print(f"matrix-multiply peak {peak} GFLOP/s: a round would take {operations / peak:.3f} s at it")
    print("medians over the rounds of interleaved runs; *: disturbed by other processes")
    print("ratio: times gdpfed's seconds of the same turn: median, lowest and highest of the turns")
    print(
        f"{'':26}{'rounds':>7}{'s/round':>10}{'fastest':>9}{'clients/s':>11}{'ratio':>7}{'':13}{'of peak':>9}"
        f"{'start-up s':>12}{'peak MB':>9}"
    )
    for name, row in rows.items():
        if "not_run" in row:
            print(f"{name:26}not run: {row['not_run']}")
            continue
        median = row["seconds_per_round"]
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else "-"
        turns = f"{row['lowest_ratio']:.2f}-{row['highest_ratio']:.2f}" if "ratio" in row else ""
        print(
            f"{name:26}{row['rounds']:7}{median:9.3f}{' ' if row['quiet'] else '*'}{row['fastest']:9.3f}"
            f"{table['clients_per_round'] / median:11.1f}{ratio:>7}{turns:>13}{operations / median / peak:9.1%}"
            f"{row['startup_seconds']:12.1f}{row['peak_memory_mb']:9.0f}"
        )


def check(task: Task, chosen: list[Contestant], *, timeout: float) -> bool:
    """Two rounds without noise, the same cohorts: prints how far apart the models are from the plain loop's."""
    reference = CONTESTANTS[1]
    # Flower's cohorts are its own choice, and gdpfed's batches: they go first, and the others train the same.
    ordered = sorted(
        [item for item in chosen if item != reference], key=lambda item: item.module != "peers.flower_peer"
    )
    clip_norm, rate = str(task.check_clip_norm), str(task.check_learning_rate)
    basic = ["--rounds", "1", "--noise-multiplier", "0", "--clip-norm", clip_norm, "--learning-rate", rate]
    saved: dict[str, Any] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        cohorts: list[str] = []
        for number, contestant in enumerate([ordered[0], reference, *ordered[1:]] if ordered else [reference]):
            file = Path(folder) / f"{number}.npz"
            try:
                run_contestant(contestant, task, [*basic, *cohorts, "--save", str(file)], timeout=timeout)
            except NotRunError as error:
                failures[contestant.name] = str(error)
                continue
            cohorts = cohorts or ["--cohorts", str(file)]
            saved[contestant.name] = np.load(file)["models"]
    if reference.name in failures:
        print(f"{reference.name}: not run: {failures[reference.name]}")
        return False
    expected = saved[reference.name]
    moved = np.linalg.norm(expected[1:] - expected[:1], axis=1)
    print(
        f"{task.title}, {task.clients} clients, no noise, clip norm {clip_norm}, learning rate {rate}; the plain "
        f"loop's model moved by {moved[0]:.2e}, {moved[1]:.2e}"
    )
    print(f"{'distance, in parts of that':26}{'start':>10}{'round 1':>10}{'round 2':>10}")
    passed = True
    for contestant in chosen:
        if contestant == reference:
            continue
        if contestant.name in failures:
            print(f"{contestant.name:26}not run: {failures[contestant.name]}")
            continue
        apart = np.linalg.norm(saved[contestant.name] - expected, axis=1)
        apart[1:] /= moved
        agrees = bool(apart[0] == 0 and apart.max() < task.check_tolerance)
        passed &= agrees
        numbers = "".join(f"{value:10.1e}" for value in apart)
        print(f"{contestant.name:26}{numbers}  {'agrees' if agrees else 'DIFFERS'}")
    return passed


def scaling(*, rounds: int, timeout: float, patience: float) -> None:
    """Prints gdpfed's time and memory against the number of clients and the size of the cohort."""
    by_clients = [(clients, 100) for clients in (100, 1_000, 10_000, 100_000, 1_000_000)]
    by_cohort = [(6_000, cohort) for cohort in (10, 30, 100, 300, 1_000, 3_000)]
    print("gdpfed; memory above that of the images and of the clients' lists of them; trained: mean cohort")
    for title, points in (("cohort of 100", by_clients), ("6,000 clients", by_cohort)):
        print(f"\n{title}")
        print(
            f"{'clients':>10}{'cohort':>8}{'trained':>9}{'s/round':>9}{'ms/client':>11}{'set-up s':>10}{'peak MB':>9}"
            f"{'above data':>12}{'others':>8}"
        )
        for clients, cohort in points:
            arguments = ["--clients", str(clients), "--cohort", str(cohort), "--rounds", str(rounds)]
            arguments += ["--workers", str(CORES)]
            wait_for_quiet(patience)
            try:
                result = run_module(
                    sys.executable, "peers.gdpfed_scaling", arguments, ours=True, threads=1, timeout=timeout
                )
            except NotRunError as error:
                print(f"{clients:10,}{cohort:8,}  not run: {error}")
                continue
            per_client = statistics.median(
                spent / max(1, trained)
                for spent, trained in zip(result["seconds_per_round"], result["trained"], strict=True)
            )
            above = result["peak_memory_mb"] - result["data_memory_mb"]
            print(
                f"{clients:10,}{cohort:8,}{statistics.mean(result['trained']):9.0f}"
                f"{statistics.median(result['seconds_per_round']):9.3f}{1000 * per_client:11.2f}"
                f"{result['setup_seconds']:10.2f}{result['peak_memory_mb']:9.0f}{above:12.0f}"
                f"{statistics.median(result['others_per_round']):8.2f}"
            )


class RayCluster:
    """A head and one more node on loopback, which share the cores, for as long as the block lasts."""

    def __enter__(self) -> str:
        self._folder = tempfile.TemporaryDirectory(prefix="gdpfed-", dir="/tmp")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "RAY_TMPDIR": self._folder.name,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "OMP_NUM_THREADS": "1",
            "CORES": str(max(1, CORES // 2)),
        }
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tests.training.ray_cluster", self._folder.name],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("no Ray cluster could be started: pip install 'gdpfed[ray]'")
        return str(json.loads(line)["address"])

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def ray_overhead(*, repeats: int, rounds: int, timeout: float, patience: float, record: Path | None) -> None:
    """The same rounds by both engines, in turns; prints how much longer they take on Ray."""
    seconds: dict[str, list[Any]] = {"local": [], "ray": []}
    norms = set()
    with RayCluster() as address:
        for repeat in range(repeats):
            for engine in ("local", "ray"):
                where = ["--ray-address", address] if engine == "ray" else []
                arguments = ["--engine", engine, *where, "--rounds", str(rounds), "--workers", str(2 * (CORES // 2))]
                wait_for_quiet(patience)
                result = run_module(
                    sys.executable, "peers.gdpfed_ray", arguments, ours=True, threads=1, timeout=timeout
                )
                seconds[engine].append(result)
                norms.add(result["result_norm"])
                median = statistics.median(result["seconds_per_round"])
                print(f"{repeat + 1}/{repeats} {engine}: {median:.3f} s a round", file=sys.stderr)
    if len(norms) != 1:
        raise SystemExit(f"the engines' models differ: norms {sorted(norms)}")
    found = {}
    for engine, results in seconds.items():
        # Of a cluster the neighbours are its own workers, so that nothing can be left out: all rounds count.
        rows = [spent for each in results for spent in each["seconds_per_round"]]
        startup = statistics.median(each["startup_seconds"] for each in results)
        found[engine] = {
            "rounds": len(rows),
            "seconds_per_round": round(statistics.median(rows), 4),
            "fastest": round(min(rows), 4),
            "startup_seconds": round(startup, 1),
        }
        print(f"{engine:6} {found[engine]}")
    overhead = {key: round(found["ray"][key] / found["local"][key] - 1, 4) for key in ("seconds_per_round", "fastest")}
    print(f"Ray takes longer by {overhead['seconds_per_round']:.1%} (medians), {overhead['fastest']:.1%} (fastest)")
    if record is not None:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"cores": CORES, **found, "overhead": overhead}, indent=2) + "\n")


def chosen_tasks(name: str, *, clients: int | None) -> list[Task]:
    """The task of this name, or all of them; with so many clients a round, where given."""
    found = [task for task in TASKS.values() if name in (task.name, "all")]
    return found if clients is None else [replace(task, clients=clients) for task in found]


def chosen_contestants(task: str, *, only: str) -> list[Contestant]:
    """Those that do this task and whose names begin so; for all tasks, those that use all cores."""
    begins = tuple(name.strip() for name in only.split(",") if name.strip()) or ("",)
    named = [contestant for contestant in CONTESTANTS if contestant.name.startswith(begins)]
    if task == "all":
        return [each for each in named if each.tasks == tuple(TASKS) and each.workers == CORES]
    return [each for each in named if task in each.tasks]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="gdpfed's simulator against its peers")
    parser.add_argument("--task", choices=(*TASKS, "all"), default="fmnist", help="whose round, or all, in turn")
    parser.add_argument("--clients", type=int, help="that train in a round; default: those of peers/tasks.py")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each run")
    parser.add_argument("--only", default="", help="contestants whose name begins with one of these, e.g. gdpfed,pfl")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one run may take")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine before a run")
    parser.add_argument("--record", type=Path, help="where to keep the table's numbers, as JSON")
    parser.add_argument("--check", action="store_true", help="compare results instead of times")
    parser.add_argument("--scaling", action="store_true", help="growth with clients and cohort instead of peers")
    parser.add_argument("--ray", action="store_true", help="gdpfed's engines against each other instead of peers")
    given = parser.parse_args()
    # So that whoever ends us ends the contestant too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if (given.ray or given.scaling) and (given.task != "fmnist" or given.clients):
        parser.error("--ray and --scaling are of FMNIST, with clients of their own")
    try:
        tasks = chosen_tasks(given.task, clients=given.clients)
    except ValueError as error:
        parser.error(f"--clients: {error}")
    chosen = chosen_contestants(given.task, only=given.only)
    if not chosen:
        names = (item.name for item in chosen_contestants(given.task, only=""))
        parser.error(f"--only: expected beginnings of {', '.join(names)}")
    if given.ray:
        ray_overhead(
            repeats=given.repeats,
            rounds=given.rounds,
            timeout=given.timeout,
            patience=given.patience,
            record=given.record,
        )
    elif given.scaling:
        scaling(rounds=given.rounds, timeout=given.timeout, patience=given.patience)
    elif given.check:
        passed = [check(task, chosen, timeout=given.timeout) for task in tasks]
        sys.exit(0 if all(passed) else 1)
    else:
        print(f"{CORES} cores, {versions(chosen)}")
        tables = []
        for task in tasks:
            tables.append(
                compare(
                    task,
                    chosen,
                    repeats=given.repeats,
                    rounds=given.rounds,
                    timeout=given.timeout,
                    patience=given.patience,
                )
            )
            print_table(tables[-1])
            if given.record is not None:
                keep(given.record, chosen, tables)


if __name__ == "__main__":
    main()
