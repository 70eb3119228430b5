"""What takes computing time, as jobs: plans, comparisons, frontiers, checks of plans, reports.

Place: called in a process of its own (`processes`); sends what it found, rendered. This module is imported once, before
any process is forked, with what the accountant needs. A job is a function of frozen values and of where to send events:
{"done", "total", "words"} while it works, anything else when it knows.

Guarantees (tests of the same name):
  the_page_agrees_with_the_command   to the last digit: both call the same functions with the same values.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_accounting  # noqa: F401 - before processes are forked, not in each of them
import scipy.optimize
import scipy.special
import scipy.stats  # noqa: F401

from gdpfed.errors import GdpfedError, InputError
from gdpfed.files import check_writable
from gdpfed.planning.methods import COMPARED, METHODS, for_method, make_plan, plan_frontier
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_as_json, plan_from_toml, plan_hash, save_plan
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.load import load_report
from gdpfed.report.page import report_html, words_of
from gdpfed.serve import figures
from gdpfed.serve.inside import inside
from gdpfed.serve.pages import rendered
from gdpfed.serve.processes import Send
from gdpfed.serve.states import CONTROLS, PlannerState
from gdpfed.serve.tables import compared_table, frontier_table
from gdpfed.tasks.task import Task

__all__ = [
    "Planned", "ReportAsked", "Saving", "compare_job", "frontier_job", "plan_job", "planned_data", "report_job",
    "save_job", "shown", "verify_job",
]  # fmt: skip

# A histogram with so few budgets can be edited bar by bar.
_MOST_EDITED = 24


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A state of the planner, and the folder that its files are in."""

    state: PlannerState
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Saving:
    """A plan to save: under which name in the folder, and whether a file of that name may be replaced."""

    planned: Planned
    name: str
    replace: bool


@dataclass(frozen=True, kw_only=True)
class ReportAsked:
    """Runs to report on."""

    runs: tuple[Path, ...]


def _method(plan: Plan, commands: tuple[str, ...] = ()) -> MethodRuns:
    return MethodRuns(
        label=plan.method,
        index=list(METHODS).index(plan.method),
        plan=plan,
        plan_hash=plan_hash(plan),
        run_toml="",
        runs=(),
        check_commands=commands,
    )


def planned_data(task: Task | None, *plans: Plan) -> ReportData:
    """Plans as a report has them."""
    title = "" if task is None else task.title
    return ReportData(title=title, task=task, methods=tuple(map(_method, plans)))


def shown(template: str, data: ReportData, **content: Any) -> str:
    """A part of a page about plans."""
    return rendered(template, data=data, best=data.headline, kind="plan", words=words_of(data), **content)


def plan_job(asked: Planned, send: Send) -> None:
    """The plan of a state, in numbers and as a part of the page, and what the controls show."""
    task = asked.state.task(asked.folder)
    # Before the plan is made: the histogram is there while the calibration runs.
    bars = figures.budget_bars(task.budgets.epsilons)
    is_edited = not asked.state.is_of_a_file and len(bars) <= _MOST_EDITED and all(low == high for low, high, _ in bars)
    stated = dict(asked.state.stated)
    settings = {name: getattr(task.settings, name) for name in CONTROLS}
    known = {
        "bars": bars,
        "is_edited": is_edited,
        "settings": settings,
        "stated": list(stated),
        "query": asked.state.query,
        "command": asked.state.command(asked.folder),
        "title": task.title,
    }
    send(known)
    plan = make_plan(task.budgets, task.settings)
    send(
        {
            "plan": plan_as_json(plan),
            "found": {
                "delta": plan.largest_delta,
                "asks": plan.asks,
                "trainings": plan.trainings,
                "borders": [group.epsilon for group in plan.groups],
            },
            "html": shown("plan_answer.html", planned_data(task, plan)),
        }
    )


def compare_job(asked: Planned, send: Send) -> None:
    """All methods for the same budgets, as `gdpfed plan compare`."""
    task = asked.state.task(asked.folder)
    plans, skipped = [], []
    for number, name in enumerate(COMPARED):
        send({"done": number, "total": len(COMPARED), "words": f"planning {name}"})
        try:
            plans.append(make_plan(task.budgets, for_method(task.settings, name)))
        except GdpfedError as error:
            # As on the command line: what does not apply to these budgets is left out, and said.
            skipped.append((name, str(error)))
    if not plans:
        raise InputError(f"no method applies: {skipped[0][1]}")
    send(
        {
            "plans": [plan_as_json(plan) for plan in plans],
            "html": shown(
                "compare_answer.html",
                planned_data(task, *plans),
                plans=plans,
                compared=compared_table(plans),
                skipped=skipped,
                chosen=task.settings.method,
                order=list(METHODS),
            ),
        }
    )


def frontier_job(asked: Planned, send: Send) -> None:
    """What a promise against the server costs clients, as `gdpfed plan frontier`."""
    task = asked.state.task(asked.folder)
    if not METHODS[task.settings.method].is_private:
        raise InputError(f"{task.settings.method} promises nothing, so there is nothing to hide from the server")
    send({"words": "planning against models"})
    found = plan_frontier(
        task.budgets,
        task.settings,
        watch=lambda point: send({"words": f"{point.asks} asks: {point.trainings:.2f} trainings"}),
    )
    ask_cost = task.settings.ask_cost
    rows = frontier_table(found, ask_cost=ask_cost)
    send(
        {
            "points": [(point.asks, point.trainings, point.cost) for point in found.points],
            "cheapest": (found.cheapest.asks, found.cheapest.trainings),
            "html": rendered("frontier_answer.html", found=found, ask_cost=ask_cost, rows=rows),
        }
    )


def save_job(asked: Saving, send: Send) -> None:
    """Makes the plan, which is remembered, and saves it in the folder; never over a file unless told."""
    if not asked.name.endswith(".toml") or "/" in asked.name or asked.name.startswith("."):
        raise InputError(f"expected a name such as plan.toml, got {asked.name[:80]!r}")
    path = inside(asked.planned.folder, asked.name)
    if path.is_symlink():
        raise InputError(f"{asked.name!r} is a link: choose another name")
    if path.exists() and not asked.replace:
        send({"error": f"{asked.name!r} is there already: choose another name, or replace it", "exists": True})
        return
    check_writable(path)
    task = asked.planned.state.task(asked.planned.folder)
    plan = make_plan(task.budgets, task.settings)
    save_plan(plan, path)
    send({"saved": str(path), "hash": plan_hash(plan), "command": shlex.join(["gdpfed", "verify", str(path)])})


def verify_job(text: str, send: Send) -> None:
    """Whether every epsilon of a plan's file comes out of its mechanism again."""
    plan_from_toml(text)
    send({"verified": True})


def report_job(asked: ReportAsked, send: Send) -> None:
    """The report of these runs, unfinished ones too."""
    send({"html": report_html(load_report(asked.runs, partial=True))})
