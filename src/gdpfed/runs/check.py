"""Are the ledgers, plans, runs and homes in a folder sound, by the rules of this version?

Place: beside the runs, for someone who has just upgraded: what an earlier version let pass may not be true. Reads, and
trusts nothing that was computed before. A finding has problems (a promise is broken, or cannot be checked) and notes
(nothing is wrong, and the owner should know).

Guarantees (tests of the same name):
  nothing_is_modified            no file is written, made or removed.
  doubled_clients_are_found      in ledgers anywhere below a folder, whatever their names.
  plans_are_verified_again       plan.toml and other plans, in runs, homes and alone.
  damage_is_reported             whatever is in the files, there is a finding and no other error.
  links_are_not_followed         a loop of links ends, and nothing outside is read.

Does not: check signatures of enrolments, or models; a node or a server does when it starts.
"""

import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gdpfed.config import parse_toml, read_toml
from gdpfed.errors import GdpfedError, InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.doubled import check_no_doubled
from gdpfed.ledger.journal import companion
from gdpfed.ledger.keys import KEY_BYTES
from gdpfed.ledger.store import Store, is_ledger_file
from gdpfed.ledger.verify import verify_ledger
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, plan_hash
from gdpfed.privacy.accountant import check_delta
from gdpfed.privacy.cache import without_cache
from gdpfed.privacy.calibrate import check_epsilon
from gdpfed.runs.link import read_link

__all__ = ["Finding", "Kind", "check_paths"]

Kind = Literal["ledger", "node ledger", "plan", "run", "server home", "node home", "folder", "file"]
# A text that is larger is no plan.
_LARGEST_TOML = 16 << 20
_JOURNAL = re.compile(rb"1\t[a-z]+\t[0-9a-f]{64}\t")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    path: Path
    kind: Kind
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether all that could be checked holds."""
        return not self.problems

    def mapping(self) -> dict[str, Any]:
        """Ready for JSON."""
        told = {"path": str(self.path), "kind": self.kind, "sound": self.is_sound}
        return {**told, "problems": list(self.problems), "notes": list(self.notes)}


class _Report:
    """Problems and notes of one thing, as they are found."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []

    def judge(self, look: Callable[[], object]) -> Any:
        """What ``look`` returns; None, and a problem, if it fails, however it does."""
        try:
            with without_cache():
                return look()
        except GdpfedError as error:
            told = str(error)
        except OSError as error:
            told = f"cannot be read: {error.strerror or error}; check its rights"
        except Exception as error:
            # A damaged file may fail anywhere: that is what was to be found out.
            told = f"is damaged, or has another format ({type(error).__name__}: {error}): restore a copy"
        if told not in self.problems:
            self.problems.append(told)
        return None

    def finding(self, path: Path, kind: Kind) -> Finding:
        return Finding(path=path, kind=kind, problems=tuple(self.problems), notes=tuple(self.notes))


def check_paths(paths: Iterable[str | Path]) -> Iterator[Finding]:
    """Everything of gdpfed's in folders and files, in the order in which it is found.

    A path that is given may be a link; below it no link is followed.
    """
    given = [Path(path) for path in paths]
    for path in given:
        if not os.path.exists(path):
            raise InputError(f"expected a folder or a file, got {str(path)!r}, which is not there: check the path")
    memory = _Memory()
    seen: set[str] = set()
    for path in given:
        yield from _in_folder(path, memory, seen) if path.is_dir() else _alone(path, memory)


class _Memory:
    """Plans and ledgers that were read already: many runs share them."""

    def __init__(self) -> None:
        self._plans: dict[bytes, Plan | GdpfedError] = {}
        self.ledger = functools.cache(lambda path: Ledger.read(path).state)

    def plan(self, path: Path) -> Plan:
        digest = hashlib.sha256(read_toml(path).encode()).digest()
        if digest not in self._plans:
            try:
                self._plans[digest] = load_plan(path)
            except GdpfedError as error:
                self._plans[digest] = error
        found = self._plans[digest]
        if isinstance(found, GdpfedError):
            raise found
        return found


def _alone(path: Path, memory: _Memory) -> Iterator[Finding]:
    report = _Report()
    is_plain = path.is_file()
    if is_plain and report.judge(lambda: is_ledger_file(path)):
        yield _ledger(path)
    elif is_plain and _is_plan(path):
        yield _plan(path, memory)
    else:
        report.problems.append("expected a ledger, a plan or a folder: give the folder that holds the file")
        yield report.finding(path, "file")


def _in_folder(top: Path, memory: _Memory, seen: set[str]) -> Iterator[Finding]:
    unreadable: list[OSError] = []
    for name, folders, files in os.walk(top, onerror=unreadable.append):
        folder = Path(name)
        folders.sort()
        place = os.path.realpath(folder)
        if place in seen:
            continue
        seen.add(place)
        plain = sorted(file for file in files if _is_plain(folder / file))
        yield from _of_folder(folder, plain, memory)
    for error in unreadable:
        told = f"cannot be read: {error.strerror or error}; check its rights"
        yield Finding(path=Path(error.filename or top), kind="folder", problems=(told,))


def _is_plain(path: Path) -> bool:
    """Neither a link, nor a pipe that would keep its reader waiting."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _of_folder(folder: Path, files: list[str], memory: _Memory) -> Iterator[Finding]:
    present = set(files)
    is_run = "run.toml" in present and bool(present & {"versions.json", "plan.toml"})
    is_server, is_node = "server.key" in present, "identity.key" in present
    if is_run:
        yield _run(folder, present, memory)
    if is_server:
        yield _server(folder, present, memory)
    if is_node:
        yield _node(folder, present)
    for name in files:
        path = folder / name
        expected = (is_server and name == "ledger") or (is_node and name == "spend.db")
        if expected or _Report().judge(functools.partial(is_ledger_file, path)):
            yield _ledger(path)
        elif name.endswith(".journal") and _is_bereft(path):
            yield _ledger(path.with_name(name.removesuffix(".journal")))
        elif name.endswith(".toml") and not (name == "plan.toml" and (is_run or is_server)) and _is_plan(path):
            yield _plan(path, memory)


def _is_bereft(journal: Path) -> bool:
    """Whether this is the journal of a ledger that is gone, or no longer looks like one."""

    def look() -> bool:
        with journal.open("rb") as file:
            if not _JOURNAL.match(file.read(200)):
                return False
        ledger = journal.with_name(journal.name.removesuffix(".journal"))
        return not ledger.is_file() or not is_ledger_file(ledger)

    return bool(_Report().judge(look))


def _is_plan(path: Path) -> bool:
    if path.name == "plan.toml":
        return True
    if path.suffix != ".toml":
        return False

    def look() -> bool:
        if path.stat().st_size > _LARGEST_TOML:
            return False
        text = read_toml(path)
        if text.startswith("# A gdpfed plan"):
            return True
        groups = parse_toml(text, source=str(path)).get("groups")
        return isinstance(groups, list) and any(isinstance(one, dict) and "noise_multiplier" in one for one in groups)

    # What is no TOML is not a plan of ours, unless it says so in its first line.
    return bool(_Report().judge(look))


def _plan(path: Path, memory: _Memory) -> Finding:
    report = _Report()
    report.judge(lambda: memory.plan(path))
    return report.finding(path, "plan")


def _private(report: _Report, path: Path, what: str) -> None:
    def look() -> None:
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise PrivacyError(f"{str(path)!r} can be read by others, and holds {what}: chmod 600 {path}")

    report.judge(look)


def _ledger(path: Path) -> Finding:
    report = _Report()
    if not path.is_file():
        report.problems.append("its journal is there, the ledger is not: restore a copy")
        return report.finding(path, "ledger")
    store: Store | None = report.judge(lambda: Store.read(path))
    for suffix, what in (("", "who took part"), (".journal", "who took part"), (".key", "the ledger's secret")):
        _private(report, path.with_name(path.name + suffix), what)
    if store is None:
        return report.finding(path, "ledger")
    if not companion(path, "key").exists():
        report.notes.append("its seal was not checked, because its key is elsewhere: gdpfed ledger verify --key")
    if store.rows and store.rows[0].kind != "ledger":
        if store.journal_is_damaged:
            report.problems.append("its journal is damaged: the node repairs it when it next runs")
        return report.finding(path, "node ledger")
    found = report.judge(lambda: verify_ledger(path))
    if found is None:
        # Whatever else is wrong, these must be known.
        report.judge(lambda: check_no_doubled(Ledger.read(path).state))
    elif found.not_compared:
        report.notes.append(
            f"not known whether clients of {', '.join(map(repr, found.not_compared))} are in another population too, "
            f"because there are no names to compare: whoever is has two budgets; keep one ledger for each such "
            f"population only if nobody is in two"
        )
    return report.finding(path, "ledger")


def _run(folder: Path, present: set[str], memory: _Memory) -> Finding:
    report = _Report()
    missing = [name for name in ("plan.toml", "versions.json") if name not in present]
    if missing:
        report.problems.append(f"expected {' and '.join(missing)} in a run's folder: restore a copy")
    plan: Plan | None = report.judge(lambda: memory.plan(folder / "plan.toml")) if "plan.toml" in present else None
    report.judge(lambda: parse_toml(read_toml(folder / "run.toml"), source="run.toml"))

    def same_plan() -> None:
        told = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
        if plan is not None and told.get("plan", plan_hash(plan)) != plan_hash(plan):
            raise PrivacyError("plan.toml is not the plan that ran (versions.json has its hash): restore plan.toml")

    if "versions.json" in present:
        report.judge(same_plan)
    report.judge(lambda: _check_charged(folder, plan, memory, report))
    return report.finding(folder, "run")


def _check_charged(folder: Path, plan: Plan | None, memory: _Memory, report: _Report) -> None:
    """That the ledger that a run names has charged it."""
    link = read_link(folder / "ledger.json")
    if link is None:
        return
    if not link.path.is_file():
        report.notes.append(f"its ledger is not at {str(link.path)!r}: what it spent was not compared")
        return
    state = memory.ledger(link.path)
    records = folder / "records.jsonl"
    if link.run not in state.runs:
        if records.is_file() and records.stat().st_size:
            raise PrivacyError(f"its ledger {str(link.path)!r} has no run {link.run!r}: restore the ledger's last copy")
        return
    if plan is not None and state.runs[link.run].plan_hash != plan_hash(plan):
        raise PrivacyError(f"its ledger {str(link.path)!r} has run {link.run!r} with another plan: restore plan.toml")
    charged, released = max(state.runs[link.run].charged, default=0), _rounds_recorded(records)
    if charged < released:
        raise PrivacyError(
            f"it has released {released} rounds, its ledger {str(link.path)!r} has charged {charged}: the ledger is an "
            f"old copy; restore the last one"
        )


def _rounds_recorded(path: Path) -> int:
    """The last round in a run's records; a line that was cut off by a kill is not one."""
    rounds = [0]
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            rounds.append(int(json.loads(line)["round"]))
        except (ValueError, KeyError, TypeError):
            break
    return max(rounds)


def _server(folder: Path, present: set[str], memory: _Memory) -> Finding:
    report = _Report()
    _check_key(report, folder / "server.key")
    if "plan.toml" in present:
        report.judge(lambda: memory.plan(folder / "plan.toml"))

    def named() -> None:
        told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if told["plan"] != hashlib.sha256((folder / "plan.toml").read_bytes()).hexdigest():
            raise InputError("plan.toml is not the one that run.json was made for: set the plan again")

    if "run.json" in present:
        report.judge(named)
    if "settings.toml" in present:
        settings = _table(report, folder / "settings.toml")
        if settings is not None and _fraction(report, settings, "settings.toml") == 0:
            report.notes.append(
                "settings.toml has colluding_fraction = 0: noise is sized as if no client told the server its own "
                "(docs/security.md)"
            )
    return report.finding(folder, "server home")


def _node(folder: Path, present: set[str]) -> Finding:
    report = _Report()
    _check_key(report, folder / "identity.key")
    if "budget.toml" not in present:
        report.problems.append("expected budget.toml, what its owner allows: restore a copy")
        return report.finding(folder, "node home")
    budget = _table(report, folder / "budget.toml")
    if budget is not None:
        for name, check in (("epsilon", check_epsilon), ("delta", check_delta), ("epsilon_server", check_epsilon)):
            if name in budget or name != "epsilon_server":
                report.judge(functools.partial(_check_number, budget, name, check))
        if "epsilon_server" not in budget:
            report.notes.append(
                "budget.toml states no epsilon_server: the default of this version holds, which is finite "
                "(docs/security.md); state what the server may learn"
            )
        if not _fraction(report, budget, "budget.toml"):
            report.notes.append(
                "budget.toml states no colluding_fraction, or 0: state how much of a cohort may tell the server its "
                "noise; without the key the default of this version holds (docs/security.md)"
            )
    return report.finding(folder, "node home")


def _check_key(report: _Report, path: Path) -> None:
    def look() -> None:
        if path.stat().st_size != KEY_BYTES:
            raise InputError(f"expected {KEY_BYTES} bytes in {str(path)!r}, got {path.stat().st_size}: restore a copy")

    report.judge(look)
    _private(report, path, "a private key")


def _table(report: _Report, path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = report.judge(lambda: parse_toml(read_toml(path), source=repr(str(path))))
    return found


def _check_number(table: dict[str, Any], name: str, check: Callable[[float], object]) -> None:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"expected a number as {name} in budget.toml, got {value!r}")
    check(float(value))


def _fraction(report: _Report, table: dict[str, Any], source: str) -> float | None:
    value = table.get("colluding_fraction")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 0.5:
        report.problems.append(f"expected 0 <= colluding_fraction < 0.5 in {source}, got {value!r}")
        return None
    return float(value)
