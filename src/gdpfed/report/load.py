"""Groups run folders into the methods of a report, and refuses what cannot be one.

Place: run folders -> `ReportData`. Everything that can be wrong with the input is found here, or by the folder's own
checks (`RunFolder.checked_records`), before a byte of output exists.

Guarantees (tests of the same name):
  an_unfinished_run_is_refused        unless asked for, and then it is marked everywhere.
  one_report_is_one_task              other data, budgets or training are refused, and named.
  the_same_run_twice_is_refused       one method and seed count once.
  a_plan_can_be_reported              before anything is trained: a file alone is enough.
"""

import dataclasses
import itertools
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from gdpfed.config import read_toml
from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import METHODS, make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, plan_hash
from gdpfed.planning.settings import PlanSettings
from gdpfed.planning.spent import spent_after, spent_so_far
from gdpfed.privacy.budgets import looks_compact
from gdpfed.report.contents import MethodRuns, ReportData, RunResult
from gdpfed.runs.folder import RunFolder, find_runs
from gdpfed.tasks.task import DEMONSTRATION, PRESETS, Task, load_task

__all__ = ["is_planned", "load_planned", "load_report", "report_of"]

# What tells one method of a report from another: a plan's hash, and the settings that asked for it.
_Key = tuple[str, PlanSettings]


def load_report(paths: Sequence[Path], *, partial: bool = False) -> ReportData:
    """Reads the runs in these folders, or one level below them; ``partial`` admits unfinished ones."""
    return report_of(find_runs(paths), partial=partial)


def report_of(folders: Sequence[RunFolder], *, partial: bool = False) -> ReportData:
    """The same of runs that are open already; at least one record of each is there."""
    _check_one_task(folders)
    by_plan: dict[_Key, list[tuple[RunResult, RunFolder]]] = {}
    for folder in folders:
        result = _result(folder)
        if not result.is_finished and not partial:
            raise InputError(
                f"expected finished runs, got {result.folder!r}, which has done {result.rounds_done} rounds: gdpfed "
                f"resume {result.folder}, or ask for a partial report"
            )
        by_plan.setdefault((plan_hash(folder.plan), folder.task.settings), []).append((result, folder))
    labels = _labels(by_plan)
    methods = []
    for index, (key, same) in enumerate(sorted(by_plan.items(), key=lambda item: _rank(labels[item[0]]))):
        ordered = sorted(same, key=lambda pair: pair[0].seed)
        for (one, _), (other, _) in itertools.pairwise(ordered):
            if one.seed == other.seed:
                twice = f"{labels[key]} with seed {one.seed} in {one.folder!r} and {other.folder!r}"
                raise InputError(f"expected every method and seed once, got {twice}: leave one out")
        methods.append(
            MethodRuns(
                label=labels[key],
                index=index,
                plan=ordered[0][1].plan,
                plan_hash=key[0],
                run_toml=read_toml(ordered[0][1].path / "run.toml"),
                runs=tuple(result for result, _ in ordered),
                check_commands=(shlex.join(["gdpfed", "verify", f"{ordered[0][0].folder}/plan.toml"]),),
            )
        )
    return ReportData(
        title=folders[0].task.title,
        task=folders[0].task,
        methods=tuple(sorted(methods, key=lambda method: (not method.is_finished, -method.mean))),
    )


def is_planned(paths: Sequence[Path]) -> bool:
    """Whether this is no folder of runs, but a plan, or what one can be made for."""
    if len(paths) != 1 or paths[0].is_dir():
        return False
    name = str(paths[0])
    return paths[0].is_file() or name in (*PRESETS, DEMONSTRATION) or looks_compact(name)


def load_planned(source: str) -> ReportData:
    """What is known before anything is trained: of a plan's file, or of what `gdpfed plan` takes."""
    task: Task | None = None
    path = Path(source)
    # No path is in a report.
    name = path.name if path.is_file() else source
    if path.suffix == ".toml" and path.is_file() and "[[groups]]" in read_toml(source):
        plan, title, commands = load_plan(source), name, [["gdpfed", "verify", name]]
    else:
        task = load_task(source)
        plan, title = make_plan(task.budgets, task.settings), task.title
        commands = [["gdpfed", "plan", name, "--out", "plan.toml"], ["gdpfed", "verify", "plan.toml"]]
    method = MethodRuns(
        label=plan.method,
        index=0,
        plan=plan,
        plan_hash=plan_hash(plan),
        run_toml="",
        runs=(),
        check_commands=tuple(map(shlex.join, commands)),
    )
    return ReportData(title=title, task=task, methods=(method,))


def _result(run: RunFolder) -> RunResult:
    records = tuple(run.checked_records())
    charged = over_all_runs = None
    if run.ledger is not None:
        over_all_runs = records[-1].epsilons
        # Recorded was what the clients had spent in all: here it is what this run had.
        records = tuple(
            dataclasses.replace(record, epsilons=spent_so_far(run.plan, record.round_number)) for record in records
        )
        if run.ledger.path.is_file():
            known = Ledger.read(run.ledger.path).state.runs.get(run.ledger.run)
            charged = None if known is None else tuple(known.charged)
            is_last = run.is_finished and records[-1].round_number == run.plan.num_rounds
            if charged and is_last and any(map(_is_less, over_all_runs, _costs(run.plan, charged))):
                whose = f"the last record of {run.path.name!r}"
                raise InputError(f"expected {whose} to have spent what its ledger charged, got less: it was edited")
    return RunResult(
        folder=run.path.name,
        seed=run.seed,
        is_finished=run.is_finished,
        records=records,
        rounds_done=run.rounds_done,
        versions=tuple(
            (name, str(run.versions[name])) for name in ("gdpfed", "python", "torch", "numpy") if name in run.versions
        ),
        stamp=run.stamp,
        remarks=run.remarks(),
        charged=charged,
        over_all_runs=over_all_runs,
    )


def _costs(plan: Plan, charged: Sequence[int]) -> list[float]:
    return [spent_after(plan, group, count) for group, count in zip(plan.groups, charged, strict=True)]


def _is_less(recorded: float, own: float) -> bool:
    # What was charged beside the plan is known by a bound, a little above it.
    return recorded < own * (1 - 2e-3)


def _check_one_task(runs: Sequence[RunFolder]) -> None:
    if not runs:
        raise InputError("expected at least one run to report on, got none: give the folders of runs")
    first = runs[0]
    for run in runs[1:]:
        for what, of_first, of_run in (
            ("data set", first.task.training.dataset, run.task.training.dataset),
            ("title", first.task.title, run.task.title),
            ("budgets", _promised(first.task), _promised(run.task)),
            ("[training]", *(dataclasses.replace(one.task.training, evaluate_every=1) for one in (first, run))),
        ):
            if of_first != of_run:
                values = "" if what in ("budgets", "[training]") else f": {of_first!r} and {of_run!r}"
                raise InputError(
                    f"expected runs of one task, got {first.path.name!r} and {run.path.name!r} of different {what}"
                    f"{values}; make a report for each"
                )


def _promised(task: Task) -> bytes:
    """What the clients ask for, in any order; a delta that is not stated is below all others."""
    asked = np.stack([task.budgets.epsilons, np.nan_to_num(task.budgets.deltas, nan=-1.0)])
    return asked[:, np.lexsort(asked)].tobytes()


def _labels(keys: Iterable[_Key]) -> dict[_Key, str]:
    """A method's name; where it occurs with several settings, also those that differ."""
    by_method: dict[str, list[_Key]] = {}
    for key in keys:
        by_method.setdefault(key[1].method, []).append(key)
    labels = {}
    for method, same in by_method.items():
        names = [field.name for field in dataclasses.fields(PlanSettings)]
        differing = [name for name in names if len({repr(getattr(settings, name)) for _, settings in same}) > 1]
        for key in same:
            values = [(name, getattr(key[1], name)) for name in differing]
            details = [f"{name.replace('_', ' ')} {_word(value)}" for name, value in values if value is not None]
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
