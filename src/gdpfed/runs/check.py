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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.accountant import check_delta
from gdpfed.privacy.cache import without_cache
from gdpfed.privacy.calibrate import check_epsilon
from gdpfed.runs.folder import plan_reader, rounds_in
from gdpfed.runs.link import read_link

__all__ = ["Checked", "Kind", "check_paths"]

Kind = Literal["ledger", "node ledger", "plan", "run", "server home", "node home", "folder", "file"]
# A text that is larger is no plan.
_LARGEST_TOML = 16 << 20
_JOURNAL = re.compile(rb"1\t[a-z]+\t[0-9a-f]{64}\t")


@dataclass(kw_only=True)
class Checked:
    """One thing that was looked at: what is wrong with it, and what its owner should know."""

    path: Path
    kind: Kind
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether all that could be checked holds."""
        return not self.problems

    def mapping(self) -> dict[str, Any]:
        """Ready for JSON."""
        whole = {"path": str(self.path), "kind": self.kind, "sound": self.is_sound}
        return {**whole, "problems": self.problems, "notes": self.notes}

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Whatever fails within is a problem, however it does; nothing is remembered from earlier."""
        try:
            with without_cache():
                yield
            return
        except GdpfedError as error:
            problem = str(error)
        except OSError as error:
            problem = _unreadable(error)
        except Exception as error:
            # A damaged file may fail anywhere: that is what was to be found out.
            problem = f"is damaged, or has another format ({type(error).__name__}: {error}): restore a copy"
        if problem not in self.problems:
            self.problems.append(problem)


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}; check its rights"


def check_paths(paths: Iterable[str | Path]) -> Iterator[Checked]:
    """Everything of gdpfed's in folders and files, as it is found. A given path may be a link; below it none counts."""
    given = [Path(path) for path in paths]
    for path in given:
        if not os.path.exists(path):
            raise InputError(f"expected a folder or a file, got {str(path)!r}, which is not there: check the path")
    memory = _Memory()
    seen: set[str] = set()
    for path in given:
        if path.is_dir():
            yield from _in_folder(path, memory, seen)
        else:
            yield _alone(path, memory)


class _Memory:
    """Plans and ledgers that were read already: many runs share them."""

    def __init__(self) -> None:
        self.plan = plan_reader()
        self.ledger = functools.cache(lambda path: Ledger.read(path).state)


def _alone(path: Path, memory: _Memory) -> Checked:
    checked = Checked(path=path, kind="file")
    if path.is_file():
        with checked.judging():
            if is_ledger_file(path):
                return _ledger(path)
        if _is_plan(path):
            return _plan(path, memory)
    checked.problems.append("expected a ledger, a plan or a folder: give the folder that holds the file")
    return checked


def _in_folder(top: Path, memory: _Memory, seen: set[str]) -> Iterator[Checked]:
    unreadable: list[OSError] = []
    for name, folders, files in os.walk(top, onerror=unreadable.append):
        folder = Path(name)
        folders.sort()
        if (real := os.path.realpath(folder)) in seen:
            continue
        seen.add(real)
        yield from _of_folder(folder, sorted(file for file in files if _is_plain(folder / file)), memory)
    for error in unreadable:
        yield Checked(path=Path(error.filename or top), kind="folder", problems=[_unreadable(error)])


def _is_plain(path: Path) -> bool:
    """Neither a link, nor a pipe that would keep its reader waiting."""
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def _of_folder(folder: Path, files: list[str], memory: _Memory) -> Iterator[Checked]:
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
        if (is_server and name == "ledger") or (is_node and name == "spend.db") or _is_ledger(path):
            yield _ledger(path)
        elif name.endswith(".journal") and _is_bereft(path):
            yield _ledger(path.with_name(name.removesuffix(".journal")))
        elif name.endswith(".toml") and not (name == "plan.toml" and (is_run or is_server)) and _is_plan(path):
            yield _plan(path, memory)


def _is_ledger(path: Path) -> bool:
    with suppress(Exception):
        return is_ledger_file(path)
    return False


def _is_bereft(journal: Path) -> bool:
    """Whether this is the journal of a ledger that is gone, or no longer looks like one."""
    with suppress(Exception), journal.open("rb") as file:
        ledger = journal.with_name(journal.name.removesuffix(".journal"))
        return bool(_JOURNAL.match(file.read(200))) and not (ledger.is_file() and is_ledger_file(ledger))
    return False


def _is_plan(path: Path) -> bool:
    if path.name == "plan.toml":
        return True
    # What is no TOML is not a plan of ours, unless it says so in its first line.
    with suppress(Exception):
        if path.suffix != ".toml" or path.stat().st_size > _LARGEST_TOML:
            return False
        text = read_toml(path)
        if text.startswith("# A gdpfed plan"):
            return True
        groups = parse_toml(text, source=str(path)).get("groups")
        return isinstance(groups, list) and any(isinstance(one, dict) and "noise_multiplier" in one for one in groups)
    return False


def _plan(path: Path, memory: _Memory) -> Checked:
    checked = Checked(path=path, kind="plan")
    with checked.judging():
        memory.plan(path)
    return checked


def _check_private(checked: Checked, path: Path, what: str) -> None:
    with checked.judging():
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise PrivacyError(f"{str(path)!r} can be read by others, and holds {what}: chmod 600 {path}")


def _ledger(path: Path) -> Checked:
    checked = Checked(path=path, kind="ledger")
    if not path.is_file():
        checked.problems.append("its journal is there, the ledger is not: restore a copy")
        return checked
    store: Store | None = None
    with checked.judging():
        store = Store.read(path)
    for suffix, what in (("", "who took part"), (".journal", "who took part"), (".key", "the ledger's secret")):
        _check_private(checked, path.with_name(path.name + suffix), what)
    if store is None:
        return checked
    if not companion(path, "key").exists():
        checked.notes.append("its seal was not checked, because its key is elsewhere: verify it with its key")
    if store.rows and store.rows[0].kind != "ledger":
        checked.kind = "node ledger"
        if store.journal_is_damaged:
            checked.problems.append("its journal is damaged: the node repairs it when it next runs")
        return checked
    with checked.judging():
        if not_compared := verify_ledger(path).not_compared:
            checked.notes.append(
                f"not known whether clients of {', '.join(map(repr, not_compared))} are in another population too, "
                f"because there are no names to compare: whoever is has two budgets; keep one ledger for each such "
                f"population only if nobody is in two"
            )
        return checked
    # Whatever else is wrong, these must be known.
    with checked.judging():
        check_no_doubled(Ledger.read(path).state)
    return checked


def _run(folder: Path, present: set[str], memory: _Memory) -> Checked:
    checked = Checked(path=folder, kind="run")
    missing = [name for name in ("plan.toml", "versions.json") if name not in present]
    if missing:
        checked.problems.append(f"expected {' and '.join(missing)} in a run's folder: restore a copy")
    plan: Plan | None = None
    if "plan.toml" in present:
        with checked.judging():
            plan = memory.plan(folder / "plan.toml")
    with checked.judging():
        parse_toml(read_toml(folder / "run.toml"), source="run.toml")
    if "versions.json" in present:
        with checked.judging():
            versions = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
            if plan is not None and versions.get("plan", plan_hash(plan)) != plan_hash(plan):
                raise PrivacyError("plan.toml is not the plan that ran (versions.json has its hash): restore plan.toml")
    with checked.judging():
        _check_charged(checked, folder, plan, memory)
    return checked


def _check_charged(checked: Checked, folder: Path, plan: Plan | None, memory: _Memory) -> None:
    """That the ledger that a run names has charged it."""
    link = read_link(folder / "ledger.json")
    if link is None:
        return
    if not link.path.is_file():
        checked.notes.append(f"its ledger is not at {str(link.path)!r}: what it spent was not compared")
        return
    state = memory.ledger(link.path)
    records = folder / "records.jsonl"
    if link.run not in state.runs:
        if records.is_file() and records.stat().st_size:
            raise PrivacyError(f"its ledger {str(link.path)!r} has no run {link.run!r}: restore the ledger's last copy")
        return
    if plan is not None and state.runs[link.run].plan_hash != plan_hash(plan):
        raise PrivacyError(f"its ledger {str(link.path)!r} has run {link.run!r} with another plan: restore plan.toml")
    charged, released = state.runs[link.run].rounds_charged(), rounds_in(records)
    if charged < released:
        raise PrivacyError(
            f"it has released {released} rounds, its ledger {str(link.path)!r} has charged {charged}: the ledger is an "
            f"old copy; restore the last one"
        )


def _server(folder: Path, present: set[str], memory: _Memory) -> Checked:
    checked = Checked(path=folder, kind="server home")
    _check_key(checked, folder / "server.key")
    if "plan.toml" in present:
        with checked.judging():
            memory.plan(folder / "plan.toml")
    if "run.json" in present:
        with checked.judging():
            named = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            if named["plan"] != hashlib.sha256((folder / "plan.toml").read_bytes()).hexdigest():
                raise InputError("plan.toml is not the one that run.json was made for: set the plan again")
    if "settings.toml" in present:
        with checked.judging():
            settings = parse_toml(read_toml(folder / "settings.toml"), source=repr(str(folder / "settings.toml")))
            if _fraction(settings, "settings.toml") == 0:
                checked.notes.append(
                    "settings.toml has colluding_fraction = 0: noise is sized as if no client told the server its own "
                    "(docs/security.md)"
                )
    return checked


def _node(folder: Path, present: set[str]) -> Checked:
    checked = Checked(path=folder, kind="node home")
    _check_key(checked, folder / "identity.key")
    if "budget.toml" not in present:
        checked.problems.append("expected budget.toml, what its owner allows: restore a copy")
        return checked
    budget: dict[str, Any] | None = None
    with checked.judging():
        budget = parse_toml(read_toml(folder / "budget.toml"), source=repr(str(folder / "budget.toml")))
    if budget is None:
        return checked
    for name, check in (("epsilon", check_epsilon), ("delta", check_delta), ("epsilon_server", check_epsilon)):
        if name in budget or name != "epsilon_server":
            with checked.judging():
                _check_number(budget, name, check)
    if "epsilon_server" not in budget:
        checked.notes.append(
            "budget.toml states no epsilon_server: the default of this version holds, which is finite "
            "(docs/security.md); state what the server may learn"
        )
    fraction: float | None = None
    with checked.judging():
        fraction = _fraction(budget, "budget.toml")
    if not fraction:
        checked.notes.append(
            "budget.toml states no colluding_fraction, or 0: state how much of a cohort may tell the server its "
            "noise; without the key the default of this version holds (docs/security.md)"
        )
    return checked


def _check_key(checked: Checked, path: Path) -> None:
    with checked.judging():
        if path.stat().st_size != KEY_BYTES:
            raise InputError(f"expected {KEY_BYTES} bytes in {str(path)!r}, got {path.stat().st_size}: restore a copy")
    _check_private(checked, path, "a private key")


def _check_number(table: dict[str, Any], name: str, check: Callable[[float], object]) -> None:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"expected a number as {name} in budget.toml, got {value!r}")
    check(float(value))


def _fraction(table: dict[str, Any], source: str) -> float | None:
    value = table.get("colluding_fraction")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 0.5:
        raise InputError(f"expected 0 <= colluding_fraction < 0.5 in {source}, got {value!r}")
    return float(value)
