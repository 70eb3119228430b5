"""Many runs: each known by its content, planned once, trained on all cores, resumed where they were.

Place: above `simulate`, below the experiments. A folder OUT holds

    plans/MEMO.json     what a task was planned to: MEMO is a hash of the task and of all code that plans
    plans/HASH.toml     the plan
    runs/NAME-KEY/      a run folder; KEY is a hash of everything that determines its result

so a run that two experiments share is made once, and a changed setting, plan or seed is another run. A run is trained
by one process at a time: the folder is locked while it is.

Guarantees (tests of the same name):
  same_content_same_key       the key changes with the task, the plan, the seed or the results version, and only then.
  killed_batch_goes_on        SIGKILL, then the same call: no finished run is made again, the same bytes at the end.
  two_batches_share_a_folder  two processes on one folder at once make each run once.
"""

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan_file import load_plan, plan_hash, save_plan
from gdpfed.privacy.cache import code_hash
from gdpfed.runs.folder import is_finished
from gdpfed.tasks.task import Task, task_to_toml
from gdpfed_reproduce.pool import Report, run_orders

__all__ = [
    "RESULTS_VERSION", "Batch", "Event", "Job", "PlannedJob", "cores_of", "finished_seconds", "found_jobs", "plan_jobs",
    "run_key", "train_jobs",
]  # fmt: skip

# Raised whenever training gives another result for the same task, plan and seed, beyond rounding: runs made before are
# then made again.
RESULTS_VERSION = 1

_KEY_LENGTH = 16
# Their plans take longest, so they are made first.
_SLOW = ("idp-fedavg", "pooled")
State = Literal["finished", "started", "missing"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A run that is wanted. For people: ``name`` begins the folder's name, ``purpose`` says what it is for."""

    name: str
    task: Task
    seed: int
    purpose: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedJob(Job):
    """A job whose plan is known, by its hash; ``key`` names the run."""

    plan: str
    key: str
    folder: Path

    @property
    def state(self) -> State:
        """How far it is, as the folder says."""
        if is_finished(self.folder):
            return "finished"
        return "started" if (self.folder / "run.toml").is_file() else "missing"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to the job at ``place`` of the list: it started, ended a round, ended, or waits for another
    process that trains the same run."""

    place: int
    kind: Literal["started", "round", "waiting", "finished"]
    rounds: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Where runs are kept, and on how much of the machine they are made; ``in_background`` they give way to others."""

    out: Path
    num_processes: int
    threads_each: int
    data_dir: Path | None = None
    in_background: bool = False


def cores_of(num_workers: int, *, num_runs: int) -> tuple[int, int]:
    """How to spend ``num_workers`` cores: processes, and threads in each. A run for each core if there are enough.

    Measured on two cores with FMNIST: two runs of one thread took 4 to 8 % less time than two after each other of two.
    """
    processes = max(1, min(num_workers, num_runs))
    return processes, max(1, num_workers // processes)


def _digest(*content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def run_key(task: Task, *, plan: str, seed: int) -> str:
    """Names a run by everything that determines its result; ``plan`` is the plan's hash."""
    return _key(task_to_toml(task), plan, seed)


def _key(task: str, plan: str, seed: int) -> str:
    return _digest(RESULTS_VERSION, task, plan, seed)[:_KEY_LENGTH]


def _memo(out: Path, task: Task) -> Path:
    asked = dataclasses.replace(task, title="", training=type(task.training)())
    # Other code may plan otherwise, so it plans again.
    planner = code_hash("privacy", "planning")
    return out / "plans" / f"{_digest(task_to_toml(asked), planner)[:_KEY_LENGTH]}.json"


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all; several processes may write the same."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(part, path)


def _plan(report: Report, task: Task, memo: Path) -> None:
    """In a process: makes a plan and keeps it."""
    del report
    plan = make_plan(task.budgets, task.settings)
    kept = memo.with_name(f"{plan_hash(plan)}.toml")
    # One at a time: another batch may come to the same plan at the same moment.
    with (memo.parent / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not kept.is_file():
            save_plan(plan, kept)
    _write(memo, {"plan": plan_hash(plan)})


def _known_plan(memo: Path) -> str | None:
    try:
        known = str(json.loads(memo.read_text(encoding="utf-8"))["plan"])
    except (OSError, ValueError, KeyError):
        return None
    return known if memo.with_name(f"{known}.toml").is_file() else None


def plan_jobs(
    jobs: Sequence[Job],
    *,
    out: Path,
    num_processes: int,
    in_background: bool = False,
    watch: Callable[[int, int], None] | None = None,
) -> list[PlannedJob]:
    """Plans what was not planned before; ``watch`` is told how many plans of how many are made."""
    memos = [_memo(out, job.task) for job in jobs]
    missing = {memo: job.task for job, memo in zip(jobs, memos, strict=True) if _known_plan(memo) is None}
    if missing:
        _make_folder(out / "plans")
    slow_first = sorted(missing.items(), key=lambda entry: entry[1].settings.method not in _SLOW)
    orders = [(_plan, (task, memo)) for memo, task in slow_first]
    done = 0
    for message in run_orders(orders, num_processes=num_processes, in_background=in_background):
        done += message.is_last
        if watch is not None:
            watch(done, len(orders))
    return [_planned(job, _known_plan(memo), out) for job, memo in zip(jobs, memos, strict=True)]


def _planned(job: Job, plan: str | None, out: Path) -> PlannedJob:
    if plan is None:
        raise InputError(
            f"expected a plan in {str(out / 'plans')!r}, which is gone: do not change the folder meanwhile"
        )
    key = run_key(job.task, plan=plan, seed=job.seed)
    return _placed(job, plan, key, out / "runs" / f"{job.name}-{key}")


def _placed(job: Job, plan: str, key: str, folder: Path) -> PlannedJob:
    return PlannedJob(
        name=job.name, task=job.task, seed=job.seed, purpose=job.purpose, plan=plan, key=key, folder=folder
    )


def found_jobs(jobs: Sequence[Job], *, out: Path) -> list[PlannedJob | None]:
    """The runs of these jobs that are in ``out``, by the plans that they were made with: nothing is planned."""
    there = {}
    for file in sorted((out / "runs").glob("*/run.toml")):
        text = "".join(line for line in file.read_text(encoding="utf-8").splitlines(True) if not line.startswith("#"))
        versions = json.loads(file.with_name("versions.json").read_text(encoding="utf-8"))
        key = _key(text, versions["plan"], versions["seed"])
        if file.parent.name.endswith(f"-{key}"):
            there[text, versions["seed"]] = (versions["plan"], key, file.parent)
    found: list[PlannedJob | None] = []
    for job in jobs:
        at = there.get((task_to_toml(job.task), job.seed))
        found.append(None if at is None else _placed(job, *at))
    return found


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {str(path)!r}: {error.strerror or error}; choose another --out"
        ) from None


@contextmanager
def _locked(folder: Path, report: Report) -> Iterator[None]:
    """Only one process trains a run; the lock goes with the process, however it ends."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(("waiting", 0, 0.0))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _train(report: Report, job: PlannedJob, plan_file: Path, threads: int, data_dir: Path | None) -> None:
    """In a process: makes a run, or goes on with it."""
    from gdpfed.runs.folder import create_run, open_run
    from gdpfed.runs.simulate import simulate

    _make_folder(job.folder)
    with _locked(job.folder, report):
        if job.state == "finished":
            return
        begun = _core_seconds()
        if job.state == "started":
            run = open_run(job.folder)
        else:
            run = create_run(job.folder, task=job.task, plan=load_plan(plan_file), seed=job.seed)
        after_rounds: list[float] = []

        def watch(progress: Any) -> None:
            after_rounds.append(_core_seconds())
            report(("round", progress.record.round_number + 1, progress.seconds))

        report(("started", 0, 0.0))
        simulate(run, num_workers=threads, data_dir=data_dir, watch=watch)
        if len(after_rounds) > 1:
            # What later estimates rest on; of a run that was resumed, the rounds of this session stand for all.
            first, *rest = after_rounds
            of_a_round = (_core_seconds() - first) / len(rest)
            _write(job.folder / "cost.json", {"core_seconds": first - begun + of_a_round * (run.plan.num_rounds - 1)})


def _core_seconds() -> float:
    """What this process and those that it started and ended took of the cores, however busy they are with others."""
    return sum(os.times()[:4])


def finished_seconds(folder: Path) -> float | None:
    """What a finished run cost, in seconds of one core; None where it was not noted."""
    try:
        return float(json.loads((folder / "cost.json").read_text(encoding="utf-8"))["core_seconds"])
    except (OSError, ValueError, KeyError):
        return None


def train_jobs(jobs: Sequence[PlannedJob], batch: Batch) -> Iterator[Event]:
    """Makes every run that is not finished, in order; yields what happens. Stopping in the middle loses nothing."""
    places = [place for place, job in enumerate(jobs) if job.state != "finished"]
    orders = [
        (_train, (jobs[place], batch.out / "plans" / f"{jobs[place].plan}.toml", batch.threads_each, batch.data_dir))
        for place in places
    ]
    for message in run_orders(orders, num_processes=batch.num_processes, in_background=batch.in_background):
        place = places[message.place]
        if message.is_last:
            yield Event(place=place, kind="finished", rounds=jobs[place].task.settings.num_rounds)
        else:
            kind, rounds, seconds = message.content
            yield Event(place=place, kind=kind, rounds=rounds, seconds=seconds)
