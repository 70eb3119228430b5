"""All runs below a folder, as they grow: where each is, how fast it goes, what it has spent, and their curves.

Place: run folders -> the page of runs. What a run was asked is read once, its records and timings line by line
(`tail`), and only when a page asks. Plans are shown as they are on disk; `unchecked` names those whose epsilons nobody
has recomputed yet, and until then the page says so.

Guarantees (tests of the same name):
  runs_are_found_below_the_folder   at any depth that people use; a run that cannot be read is listed, with the reason.
  one_bad_run_hides_no_other        whatever is in its folder, or in its name: its own row says what is wrong.
  a_list_that_did_not_change_is_not_sent   its version is the same.
  public_data_is_said               beside the accuracy of a model that rests on some.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gdpfed.config import read_toml
from gdpfed.errors import GdpfedError, InputError
from gdpfed.files import is_text
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_from_toml
from gdpfed.privacy.rounding import finite, promise, rounded_up
from gdpfed.report.load import report_of
from gdpfed.report.page import words_of
from gdpfed.runs.folder import RunFolder, is_finished, open_run
from gdpfed.runs.record import Record
from gdpfed.serve.inside import inside, name_inside
from gdpfed.serve.pages import rendered
from gdpfed.serve.tail import Tail

__all__ = ["RunList"]

_DEEPEST, _MOST_RUNS, _MOST_FOLDERS = 5, 500, 5000
# How often folders are searched for runs, in seconds: the records of known ones are looked at each time.
_SEARCHED_EVERY = 3.0
# Of so many last rounds the speed is the mean.
_RECENT = 10
_MOST_COMPARED = 12
# Of one round; what claims more is not counted.
_MOST_SECONDS, _MOST_CLIENTS = 1e9, 10**12
# What a folder that somebody else filled may lead to.
_BAD = (GdpfedError, OSError, ValueError, OverflowError, RecursionError)


class _Run:
    """One run folder."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.folder: RunFolder | None = None
        self.plan_text = ""
        self.fault = ""
        self.records, self.timings = Tail(path / "records.jsonl"), Tail(path / "timing.jsonl")
        try:
            if not is_text(name):
                raise InputError(f"expected a folder whose name is text, got {name!r}: rename it")
            self.folder = open_run(path, read_plan=self._read_plan)
        except _BAD as error:
            self.fault = _fault(error)

    def _read_plan(self, path: Path) -> Plan:
        # As it claims to be: it is verified beside this, and until then the page says that it is not.
        self.plan_text = read_toml(path)
        return plan_from_toml(self.plan_text, source=path.name, is_verified=True)

    def row(self, *, locked: set[int], checks: dict[str, str]) -> dict[str, Any]:
        """What the table of runs shows: whatever happens, something that can be sent."""
        fault = self.fault
        if self.folder is not None:
            try:
                row = self._row(self.folder, locked=locked, checks=checks)
                # Neither a number that JSON has no word for, nor a text that is none.
                json.dumps(row, allow_nan=False, ensure_ascii=False).encode()
                return row
            except _BAD as error:
                fault = _fault(error)
        return {"run": _text(self.name), "fault": _text(fault), "state": "unreadable"}

    def _row(self, run: RunFolder, *, locked: set[int], checks: dict[str, str]) -> dict[str, Any]:
        self.records.grown()
        self.timings.grown()
        plan = run.plan
        where = f"the last line of records.jsonl in {self.name!r}"
        last = Record.from_json(self.records.lines[-1], where=where) if self.records.lines else None
        rounds = [line.get("round") for line in (*self.timings.lines[-1:], *self.records.lines[-1:])]
        done = max((number for number in rounds if isinstance(number, int) and number <= plan.num_rounds), default=0)
        state = "finished" if is_finished(self.path) else "running" if self._is_alive(locked) else "stopped"
        check = checks.get(self.plan_text)
        return {
            "run": self.name,
            "title": run.task.title,
            "method": plan.method,
            "seed": run.seed,
            "stamp": run.stamp.partition(":")[0],
            "state": state,
            "round": done,
            "rounds": plan.num_rounds,
            "measure": last.measure if last else "accuracy",
            "accuracy": last.accuracy if last else None,
            "public_data": last.public_data if last else "",
            "check": "checking" if check is None else check or "verified",
            "against": "models and server" if plan.is_rotation else "models",
            "groups": _groups(plan, last),
            **self._speed(plan.num_rounds - done),
        }

    def _is_alive(self, locked: set[int]) -> bool:
        return self.path.stat().st_ino in locked

    def _speed(self, rounds_left: int) -> dict[str, Any]:
        recent = [
            line
            for line in self.timings.lines[-_RECENT:]
            if _is_up_to(line.get("seconds"), _MOST_SECONDS) and _is_up_to(line.get("clients"), _MOST_CLIENTS)
        ]
        seconds = sum(line["seconds"] for line in recent)
        if not recent or seconds <= 0:
            return {"clients_per_second": None, "seconds_left": None}
        speed = sum(line["clients"] for line in recent) / seconds
        return {"clients_per_second": finite(speed), "seconds_left": finite(rounds_left * seconds / len(recent))}


def _groups(plan: Plan, last: Record | None) -> list[dict[str, Any]]:
    nothing = [None] * len(plan.groups)
    epsilons, sizes = (last.epsilons, last.cohort) if last else (nothing, nothing)
    if not len(epsilons) == len(sizes) == len(plan.groups):
        raise InputError(f"expected epsilons and cohort of {len(plan.groups)} groups in the last record")
    return [
        {
            "name": group.name,
            "promised": promise(group.epsilon),
            "spent": None if epsilon is None else rounded_up(epsilon),
            # Of a group that was promised nothing there is none.
            "share": finite(epsilon / group.epsilon) if epsilon is not None and group.is_private else None,
            "cohort": size,
        }
        for group, epsilon, size in zip(plan.groups, epsilons, sizes, strict=True)
    ]


def _is_up_to(value: object, most: float) -> bool:
    return isinstance(value, int | float) and 0 <= value <= most


def _text(text: str) -> str:
    """What can be sent of a text: the operating system, and JSON, allow for characters that are none."""
    return text.encode("utf-8", "backslashreplace").decode()


def _fault(error: Exception) -> str:
    return str(error) if isinstance(error, GdpfedError) else f"this run cannot be read: {error}"


def _locked_inodes() -> set[int]:
    """Of folders and files that some process here holds a lock of: a run that is trained is one (`RunFolder.locked`).

    Seen from outside: taking the lock to find out could stop a run from starting."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return set()
    parts = [line.split() for line in lines if " FLOCK " in line]
    return {int(part[5].rpartition(":")[2]) for part in parts if len(part) > 5}


class RunList:
    """The runs below a folder. Calls come from several threads, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, _Run] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._checks: dict[str, str] = {}
        self._searched = -_SEARCHED_EVERY
        self._lock = threading.Lock()
        self.version = ""

    def rows(self) -> list[dict[str, Any]]:
        """A row for each run, and the version that they are."""
        with self._lock:
            self._search()
            locked = _locked_inodes()
            rows = [run.row(locked=locked, checks=self._checks) for run in self._runs.values()]
            self.version = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
            return rows

    def unchecked(self) -> list[str]:
        """The texts of plans that nobody has verified yet, each once."""
        with self._lock:
            texts = dict.fromkeys(run.plan_text for run in self._runs.values() if run.folder is not None)
            return [text for text in texts if text not in self._checks]

    def checked(self, text: str, fault: str) -> None:
        """Says what a verification found: nothing wrong is an empty text."""
        with self._lock:
            self._checks[text] = fault

    def curves(self, names: Sequence[str]) -> dict[str, Any]:
        """Curves, spend and cohorts of some runs of one task, as a part of the page."""
        if not 1 <= len(names) <= _MOST_COMPARED:
            raise InputError(f"expected from 1 to {_MOST_COMPARED} runs to compare, got {len(names)}")
        with self._lock:
            self._search()
            chosen = []
            for name in dict.fromkeys(names):
                inside(self._folder, name)
                run = self._runs.get(name)
                if run is None:
                    raise InputError(f"expected a run in the folder, got {name[:80]!r}, which is none")
                if run.folder is None:
                    raise InputError(run.fault)
                run.records.grown()
                chosen.append(run)
            waiting = [run.name for run in chosen if not run.records.lines]
            folders = [run.folder for run in chosen if run.records.lines and run.folder is not None]
            if not folders:
                words = "Nothing is evaluated yet: curves begin with the first evaluation."
                return {"html": rendered("curves_waiting.html", words=words), "version": "waiting"}
            counts = [(run.name, len(run.records.lines)) for run in chosen]
            version = hashlib.sha256(repr(counts).encode()).hexdigest()[:16]
            data = report_of(folders, partial=True)
            html = rendered(
                "curves_answer.html",
                data=data,
                best=data.headline,
                kind=data.stamp.partition(": ")[0],
                words=words_of(data),
                waiting=waiting,
            )
            return {"html": _text(html), "version": version}

    def _search(self) -> None:
        if time.monotonic() - self._searched < _SEARCHED_EVERY:
            return
        found = {}
        for path in _run_folders(self._folder):
            name = name_inside(self._folder, path)
            try:
                stat = os.stat(path / "run.toml")
            except OSError:
                continue
            stamp = (stat.st_ino, stat.st_mtime_ns)
            known = self._runs.get(name)
            found[name] = known if known is not None and self._stamps[name] == stamp else _Run(path, name)
            self._stamps[name] = stamp
            if len(found) >= _MOST_RUNS:
                break
        self._runs = found
        self._searched = time.monotonic()


def _run_folders(top: Path) -> Iterator[Path]:
    """Folders with a run.toml, in the order of their names; nothing is looked for inside of them, nor behind links."""
    waiting, seen = [(top, 0)], 0
    while waiting and seen < _MOST_FOLDERS:
        folder, depth = waiting.pop()
        seen += 1
        # Not Path.is_file, which fails for a folder that may not be looked into.
        if os.path.isfile(folder / "run.toml"):
            yield folder
            continue
        if depth >= _DEEPEST:
            continue
        try:
            inner = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        hidden = ("node_modules", "__pycache__")
        names = [one for one in inner if not one.name.startswith(".") and one.name not in hidden]
        waiting += [(one, depth + 1) for one in sorted(names, reverse=True)]
