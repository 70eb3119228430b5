"""Reads run folders for a report, and refuses what cannot be one.

Place: run folders -> `ReportData`. Everything that can be wrong with the input is found here, before a byte of output
exists.

Guarantees (tests of the same name):
  an_unfinished_run_is_refused        unless asked for, and then it is marked everywhere.
  one_report_is_one_task              other data, budgets or training are refused, and named.
  a_bad_record_is_refused             a missing or impossible field, with its folder, line and name.
  the_same_run_twice_is_refused       one method and seed count once.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdpfed.config import read_toml
from gdpfed.errors import InputError
from gdpfed.planning.methods import METHODS
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_from_toml, plan_hash
from gdpfed.planning.settings import PlanSettings
from gdpfed.report.contents import Method, Record, ReportData, RunResult
from gdpfed.runs.stamp import weakest_stamp
from gdpfed.tasks.task import Task, load_task

__all__ = ["load_report"]

_SOFTWARE = ("gdpfed", "python", "torch", "numpy")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Folder:
    """A run folder as `gdpfed.runs.folder` writes it, read without what training needs."""

    path: Path
    task: Task
    plan: Plan
    seed: int

    @property
    def is_finished(self) -> bool:
        return (self.path / "model.safetensors").is_file()

    def records(self) -> list[Any]:
        """All records; a line that was cut off by a kill is not one."""
        return _lines(self.path / "records.jsonl")


def _lines(path: Path) -> list[Any]:
    found = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def load_report(paths: Sequence[Path], *, partial: bool = False) -> ReportData:
    """Reads the runs in these folders, or one level below them; ``partial`` admits unfinished ones."""
    opened = _open_all(paths)
    _check_one_task([run for run, _ in opened])
    results = [_result(run, facts) for run, facts in opened]
    for result in results:
        if not result.is_finished and not partial:
            raise InputError(
                f"expected finished runs, got {result.folder!r}, which has done {result.rounds_done} rounds: gdpfed "
                f"resume {result.folder}, or --partial to report it as unfinished"
            )
    by_plan: dict[tuple[str, PlanSettings], list[tuple[_Folder, RunResult]]] = {}
    for (run, _), result in zip(opened, results, strict=True):
        by_plan.setdefault((plan_hash(run.plan), run.task.settings), []).append((run, result))
    labels = _labels(list(by_plan))
    methods = []
    for place, (key, same) in enumerate(sorted(by_plan.items(), key=lambda item: _rank(labels[item[0]]))):
        _check_seeds(labels[key], [result for _, result in same])
        first, _ = min(same, key=lambda pair: pair[1].seed)
        methods.append(
            Method(
                label=labels[key],
                place=place,
                plan=first.plan,
                plan_hash=key[0],
                run_toml=read_toml(first.path / "run.toml"),
                runs=tuple(sorted((result for _, result in same), key=lambda result: result.seed)),
            )
        )
    task = opened[0][0].task
    return ReportData(
        title=task.title,
        task=task,
        methods=tuple(sorted(methods, key=lambda method: (not method.is_finished, -method.mean))),
    )


def _open_all(paths: Sequence[Path]) -> list[tuple[_Folder, dict[str, Any]]]:
    folders: list[Path] = []
    for path in paths:
        inside = [path] if (path / "run.toml").is_file() else sorted(child.parent for child in path.glob("*/run.toml"))
        if not inside:
            raise InputError(f"expected a run folder, or a folder of runs, got {str(path)!r}: gdpfed train makes one")
        folders += inside
    resolved = [folder.resolve() for folder in folders]
    for place, folder in enumerate(resolved):
        if folder in resolved[:place]:
            raise InputError(f"expected every run once, got {str(folders[place])!r} twice: name it once")
    # Seeds share a plan, and verifying it takes time: once for each text.
    verified: dict[str, Plan] = {}
    opened = []
    for folder in folders:
        facts = _facts(folder)
        text = read_toml(folder / "plan.toml")
        if text not in verified:
            verified[text] = plan_from_toml(text, source=str(folder / "plan.toml"))
        task = load_task(str(folder / "run.toml"))
        opened.append((_Folder(path=folder, task=task, plan=verified[text], seed=facts["seed"]), facts))
    return opened


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "versions.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict) or not isinstance(facts.get("seed"), int):
        raise InputError(
            f"expected a run folder whose versions.json states its seed, got {str(folder)!r}: gdpfed train makes one"
        )
    return facts


def _check_one_task(runs: Sequence[_Folder]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for what, of_first, of_run in (
            ("data set", first.task.training.dataset, run.task.training.dataset),
            ("title", first.task.title, run.task.title),
            ("budgets", _promised(first.task), _promised(run.task)),
            ("[training]", _training(first.task), _training(run.task)),
        ):
            if of_first != of_run:
                shown = "" if what in ("budgets", "[training]") else f": {of_first!r} and {of_run!r}"
                raise InputError(
                    f"expected runs of one task, got {first.path.name!r} and {run.path.name!r} of different {what}"
                    f"{shown}; make a report for each"
                )


def _promised(task: Task) -> bytes:
    """What the clients ask for, in any order; a delta that is not stated is below all others."""
    asked = np.stack([task.budgets.epsilons, np.nan_to_num(task.budgets.deltas, nan=-1.0)])
    return asked[:, np.lexsort(asked)].tobytes()


def _training(task: Task) -> Any:
    return dataclasses.replace(task.training, evaluate_every=1)


def _check_seeds(label: str, results: Sequence[RunResult]) -> None:
    seen: dict[int, str] = {}
    for result in results:
        if result.seed in seen:
            raise InputError(
                f"expected every method and seed once, got {label} with seed {result.seed} in "
                f"{seen[result.seed]!r} and {result.folder!r}: leave one out"
            )
        seen[result.seed] = result.folder


def _labels(keys: Iterable[tuple[str, PlanSettings]]) -> dict[tuple[str, PlanSettings], str]:
    """A method's name; where it occurs with several settings, also those that differ."""
    by_method: dict[str, list[tuple[str, PlanSettings]]] = {}
    for key in keys:
        by_method.setdefault(key[1].method, []).append(key)
    labels = {}
    for method, same in by_method.items():
        names = [field.name for field in dataclasses.fields(PlanSettings)]
        differing = [name for name in names if len({repr(getattr(settings, name)) for _, settings in same}) > 1]
        for key in same:
            details = [
                f"{name.replace('_', ' ')} {_word(getattr(key[1], name))}"
                for name in differing
                if getattr(key[1], name) is not None
            ]
            if len(same) > 1 and not differing:
                details = [f"plan {key[0][:8]}"]
            labels[key] = f"{method} ({', '.join(details)})" if details else method
    return labels


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rank(label: str) -> tuple[int, str]:
    """The catalogue's order, so that a method looks the same in every report of the same methods."""
    name = label.partition(" (")[0]
    return (list(METHODS).index(name) if name in METHODS else len(METHODS), label)


def _result(run: _Folder, facts: dict[str, Any]) -> RunResult:
    name = run.path.name
    records = tuple(
        _record(content, groups=len(run.plan.groups), where=f"line {number} of {str(run.path / 'records.jsonl')!r}")
        for number, content in enumerate(run.records(), start=1)
    )
    if not records:
        raise InputError(f"expected at least one record in {name!r}, got none: gdpfed resume {name}")
    rounds = [record.round_number for record in records]
    if rounds != sorted(set(rounds)) or rounds[-1] > run.plan.num_rounds:
        raise InputError(f"expected records of rising rounds up to {run.plan.num_rounds} in {name!r}: it was edited")
    if run.is_finished and rounds[-1] != run.plan.num_rounds:
        raise InputError(
            f"expected a record of round {run.plan.num_rounds} in {name!r}, which is finished, got {rounds[-1]} as the "
            f"last: records.jsonl is damaged"
        )
    if run.is_finished and not _agrees(records[-1], run.plan):
        raise InputError(
            f"expected the last record of {name!r} to have spent what its plan says, got other epsilons: "
            f"records.jsonl or plan.toml was edited"
        )
    return RunResult(
        folder=name,
        seed=run.seed,
        is_finished=run.is_finished,
        rounds_done=max(rounds[-1], _last_timed_round(run)),
        records=records,
        versions=tuple((key, str(facts[key])) for key in _SOFTWARE if key in facts),
        stamp=weakest_stamp([facts.get("stamp")]),
    )


def _agrees(record: Record, plan: Plan) -> bool:
    return all(
        math.isclose(spent, group.epsilon_release, rel_tol=1e-6)
        for spent, group in zip(record.epsilons, plan.groups, strict=True)
    )


def _last_timed_round(run: _Folder) -> int:
    """Rounds between evaluations are only in timing.jsonl; a run without it counts as one evaluation further."""
    path = run.path / "timing.jsonl"
    if not path.is_file():
        records = run.records()
        return min(records[-1]["round"] + run.task.training.evaluate_every, run.plan.num_rounds) if records else 0
    rounds = [line.get("round", 0) for line in _lines(path) if isinstance(line, dict)]
    return min(max((number for number in rounds if isinstance(number, int)), default=0), run.plan.num_rounds)


def _record(content: Any, *, groups: int, where: str) -> Record:
    if not isinstance(content, dict):
        raise InputError(f"expected a record in {where}, got {content!r}")

    def number(name: str, *, least: float, most: float = math.inf) -> float:
        value = _field(content, name, where=where)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InputError(f"expected {name} from {least:g} to {most:g} in {where}, got {value!r}")
        return float(value)

    def listed(name: str) -> list[Any]:
        value = _field(content, name, where=where)
        if not isinstance(value, list) or len(value) != groups:
            raise InputError(f"expected {name} to list {groups} groups in {where}, got {value!r}")
        for item in value:
            if item is None and name == "epsilons":
                continue
            if isinstance(item, bool) or not isinstance(item, int | float) or not 0 <= item < math.inf:
                raise InputError(f"expected numbers from 0 in {name} in {where}, got {item!r}")
        return value

    return Record(
        round_number=int(number("round", least=1)),
        accuracy=number("accuracy", least=0, most=100),
        loss=number("loss", least=-1e300, most=1e300),
        epsilons=tuple(math.inf if value is None else float(value) for value in listed("epsilons")),
        cohort=tuple(int(value) for value in listed("cohort")),
        clipped=int(number("clipped", least=0, most=1e15)),
        dropped=int(number("dropped", least=0, most=1e15)),
        update_norm=number("update_norm", least=0, most=1e300),
    )


def _field(content: dict[str, Any], name: str, *, where: str) -> Any:
    if name not in content:
        raise InputError(f"expected a field {name!r} in {where}, got {', '.join(content) or 'none'}: was it edited?")
    return content[name]
