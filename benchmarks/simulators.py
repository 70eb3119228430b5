"""How fast gdpfed's simulator is, against a plain PyTorch loop, pfl-research and Flower's simulation, in one run.

    python benchmarks/simulators.py [--repeats 3] [--rounds 5] [--only gdpfed,pfl]
    python benchmarks/simulators.py --check      the same mathematics? Without noise, the models must agree to 1e-4.
    python benchmarks/simulators.py --scaling    how gdpfed's time and memory grow with clients and with the cohort
    python benchmarks/simulators.py --ray        what Ray costs: the local engine and a cluster, same cores, in turns
    python benchmarks/simulators.py --record benchmarks/results/simulators.json      for docs/benchmarks.md

The work is the FMNIST preset's round (`peers/work.py`). Every contestant is a process of its own, pfl and Flower in
environments of their own (.venv-pfl, .venv-flower: made on the first run, which downloads about 500 MB), all with the
same version of PyTorch. Contestants take turns; their first round is a warm-up and counts as start-up.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers import work

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CORES = len(os.sched_getaffinity(0))
TORCH = torch.__version__.partition("+")[0]
TOLERANCE = 1e-4
# Cores that others may keep busy in a round that counts, and how many such rounds a median needs.
QUIET = 0.15
ENOUGH_ROUNDS = 3
# Half of the clients have longer updates than this, so that the check sees both sides of the clipping.
CHECK_CLIP_NORM = 0.32


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A script under peers/, the environment that runs it, and how many processes or threads train."""

    name: str
    module: str
    workers: int
    packages: tuple[str, ...] = ()
    environment: str | None = None

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


def run_contestant(contestant: Contestant, arguments: list[str], *, timeout: float) -> Any:
    """One run of a contestant."""
    threads = 1 if contestant.name == "gdpfed" else max(1, CORES // contestant.workers)
    return run_module(
        interpreter(contestant),
        contestant.module,
        ["--workers", str(contestant.workers), *arguments],
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


def compare(
    chosen: list[Contestant], *, repeats: int, rounds: int, timeout: float, patience: float, record: Path | None
) -> None:
    """Runs the contestants in turns, prints the table, and keeps its numbers."""
    results: dict[str, list[Any]] = {contestant.name: [] for contestant in chosen}
    failures: dict[str, str] = {}
    peak = matmul_peak()
    for repeat in range(repeats):
        for contestant in chosen:
            if contestant.name in failures:
                continue
            wait_for_quiet(patience)
            try:
                result = run_contestant(contestant, ["--rounds", str(rounds)], timeout=timeout)
            except NotRunError as error:
                failures[contestant.name] = str(error)
                continue
            results[contestant.name].append(result)
            median, others = (statistics.median(result[key]) for key in ("seconds_per_round", "others_per_round"))
            so_far = f"{median:.3f} s a round, others busy on {others:.2f} cores"
            print(f"{repeat + 1}/{repeats} {contestant.name}: {so_far}", file=sys.stderr)
        peak = max(peak, matmul_peak())
    print_table(chosen, results, failures, peak)
    if record is not None:
        keep(record, chosen, results, failures, peak)


def keep(
    path: Path, chosen: list[Contestant], results: dict[str, list[Any]], failures: dict[str, str], peak: float
) -> None:
    """The table's numbers as a small file."""
    rows: list[dict[str, Any]] = []
    for contestant in chosen:
        name = contestant.name
        if name in failures:
            rows.append({"name": name, "not_run": failures[name]})
            continue
        seconds, quiet = undisturbed(results[name])
        rows.append(
            {
                "name": name,
                "rounds": len(seconds),
                "seconds_per_round": round(statistics.median(seconds), 4),
                "fastest": round(min(seconds), 4),
                "quiet": quiet,
                "startup_seconds": round(statistics.median(each["startup_seconds"] for each in results[name]), 1),
                "peak_memory_mb": round(max(each["peak_memory_mb"] for each in results[name])),
            }
        )
    content = {
        "cores": CORES,
        "versions": versions(chosen),
        "clients_per_round": work.CLIENTS_PER_ROUND,
        "gflop_per_round": round(work.floating_point_operations() / 1e9, 2),
        "matmul_peak_gflop_per_second": round(peak / 1e9),
        "contestants": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def print_table(chosen: list[Contestant], results: dict[str, list[Any]], failures: dict[str, str], peak: float) -> None:
    """The result, with the contestants in their order."""
    ours = statistics.median(undisturbed(results["gdpfed"])[0]) if results.get("gdpfed") else None
    operations = work.floating_point_operations()
    print(
        f"FMNIST preset: {work.CLIENTS_PER_ROUND} of {work.NUM_CLIENTS:,} clients a round, {work.LOCAL_STEPS} steps of "
        f"batch {work.IMAGES_PER_CLIENT}, {operations / 1e9:.1f} GFLOP a round; {CORES} cores, {versions(chosen)}"
    )
    print(f"matrix-multiply peak {peak / 1e9:.0f} GFLOP/s: a round would take {operations / peak:.3f} s at it")
    print("medians over the rounds of interleaved runs; ratio: times gdpfed's seconds; *: disturbed by other processes")
    print(
        f"{'':26}{'rounds':>7}{'s/round':>10}{'fastest':>9}{'clients/s':>11}{'ratio':>7}{'of peak':>9}"
        f"{'start-up s':>12}{'peak MB':>9}"
    )
    for contestant in chosen:
        name = contestant.name
        if name in failures:
            print(f"{name:26}not run: {failures[name]}")
            continue
        seconds, quiet = undisturbed(results[name])
        median = statistics.median(seconds)
        ratio = f"{median / ours:.2f}" if ours else "-"
        startup = statistics.median(result["startup_seconds"] for result in results[name])
        memory = max(result["peak_memory_mb"] for result in results[name])
        print(
            f"{name:26}{len(seconds):7}{median:9.3f}{' ' if quiet else '*'}{min(seconds):9.3f}"
            f"{work.CLIENTS_PER_ROUND / median:11.0f}{ratio:>7}{operations / median / peak:9.1%}"
            f"{startup:12.1f}{memory:9.0f}"
        )


def check(chosen: list[Contestant], *, timeout: float) -> bool:
    """Two rounds without noise, the same cohorts: prints how far apart the models are from the plain loop's."""
    reference = CONTESTANTS[1]
    # Flower's cohorts are its own choice: it goes first, and the others train the same clients.
    ordered = sorted(
        [item for item in chosen if item != reference], key=lambda item: item.module != "peers.flower_peer"
    )
    basic = ["--rounds", "1", "--noise-multiplier", "0", "--clip-norm", str(CHECK_CLIP_NORM)]
    saved: dict[str, Any] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        cohorts: list[str] = []
        for number, contestant in enumerate([ordered[0], reference, *ordered[1:]] if ordered else [reference]):
            file = Path(folder) / f"{number}.npz"
            try:
                run_contestant(contestant, [*basic, *cohorts, "--save", str(file)], timeout=timeout)
            except NotRunError as error:
                failures[contestant.name] = str(error)
                continue
            cohorts = cohorts or ["--cohorts", str(file)]
            saved[contestant.name] = np.load(file)["models"]
    if reference.name in failures:
        print(f"{reference.name}: not run: {failures[reference.name]}")
        return False
    expected = saved[reference.name]
    moved = np.abs(expected[1:] - expected[:1]).max(axis=1)
    print(
        f"no noise, clip norm {CHECK_CLIP_NORM}; the plain loop's model moved by at most {moved[0]:.2e}, {moved[1]:.2e}"
    )
    print(f"{'largest difference to it':26}{'start':>10}{'round 1':>10}{'round 2':>10}")
    passed = True
    for contestant in chosen:
        if contestant == reference:
            continue
        if contestant.name in failures:
            print(f"{contestant.name:26}not run: {failures[contestant.name]}")
            continue
        apart = np.abs(saved[contestant.name] - expected).max(axis=1)
        agrees = bool(apart[0] == 0 and apart.max() < TOLERANCE)
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


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="gdpfed's simulator against its peers")
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
    begins = tuple(name.strip() for name in given.only.split(",") if name.strip()) or ("",)
    chosen = [contestant for contestant in CONTESTANTS if contestant.name.startswith(begins)]
    if not chosen:
        parser.error(f"--only: expected beginnings of {', '.join(item.name for item in CONTESTANTS)}")
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
        sys.exit(0 if check(chosen, timeout=given.timeout) else 1)
    else:
        compare(
            chosen,
            repeats=given.repeats,
            rounds=given.rounds,
            timeout=given.timeout,
            patience=given.patience,
            record=given.record,
        )


if __name__ == "__main__":
    main()
