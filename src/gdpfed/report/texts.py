"""A report for machines and for plain text: JSON with every number, Markdown with the same tables and findings.

Place: `ReportData` -> text. Stamped as the page is.

Guarantees (tests of the same name):
  json_has_every_number       records, plans with both epsilons, findings; infinite costs are null.
  markdown_is_stamped_and_complete   stamp, headline, promises, plan, methods, commands.
  remarks_are_in_the_headline        of the plan and of the runs, on the page too.
"""

import json
from dataclasses import asdict
from typing import Any

import gdpfed
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_as_json
from gdpfed.privacy.rounding import finite
from gdpfed.report import findings
from gdpfed.report.contents import GroupCost, MethodRuns, ReportData, RunResult
from gdpfed.report.page import templates
from gdpfed.report.tables import Table, cost_table, method_table, plan_table
from gdpfed.runs.record import Record

__all__ = ["FORMAT", "report_json", "report_markdown"]

FORMAT = 1


def _record(record: Record) -> dict[str, Any]:
    content = {name: value for name, value in asdict(record).items() if name not in ("vanished", "by_budget", "device")}
    if not record.public_data:
        del content["public_data"]
    return {**content, "epsilons": list(map(finite, record.epsilons))}


def _run(run: RunResult) -> dict[str, Any]:
    done = {"finished": run.is_finished, "rounds_done": run.rounds_done, "versions": dict(run.versions)}
    return {"folder": run.folder, "seed": run.seed, **done, "records": list(map(_record, run.records))}


def _cost(plan: Plan, cost: GroupCost) -> dict[str, Any]:
    return {
        "group": cost.group.name,
        "num_clients": cost.group.num_clients,
        "delta": cost.group.delta,
        "promised": finite(cost.group.epsilon),
        "spent_release": finite(cost.release),
        "spent_over_all_runs": cost.over_all_runs,
        "kept": cost.keeps_promise,
        "server": {name: finite(value) for name, value in asdict(cost.server).items()},
        "conclusions": [" ".join(part) for part in findings.conclusions(plan, cost)],
    }


def _method(method: MethodRuns) -> dict[str, Any]:
    planned = {
        "label": method.label,
        "method": method.plan.method,
        "remarks": method.remarks,
        "costs": [_cost(method.plan, cost) for cost in method.costs],
        "people": findings.people(method.plan) if method.plan.is_private else None,
        "plan": plan_as_json(method.plan),
        "check": list(method.check_commands),
        "commands": method.commands,
    }
    if not method.runs:
        return planned
    return planned | {
        "finished": method.is_finished,
        "accuracy": {
            "mean": method.mean,
            "std": method.std,
            "lowest": min(method.accuracies),
            "highest": max(method.accuracies),
            "seeds": [run.seed for run in method.counted],
            "values": list(method.accuracies),
        },
        "loss": method.loss,
        "clipped_share": method.clipped_share,
        "run_toml": method.run_toml if method.is_simulation else None,
        "runs": list(map(_run, method.runs)),
    }


def report_json(data: ReportData) -> str:
    """One JSON document."""
    content = {
        "format": FORMAT,
        "stamp": data.stamp,
        "gdpfed": gdpfed.__version__,
        "title": data.title,
        "dataset": data.task.training.dataset if data.task and data.runs else None,
        "model": data.task.training.model if data.task and data.runs else None,
        "headline": {
            "method": data.headline.label,
            "sentence": findings.headline(data),
            "remarks": data.headline.remarks,
        },
        "findings": _findings(data),
        "seeds": list(data.seeds),
        "unfinished": [run.folder for run in data.unfinished],
        "software": list(data.software),
        "methods": [_method(method) for method in data.methods],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _findings(data: ReportData) -> list[str]:
    best = data.headline
    if not data.runs:
        return [findings.server(best), findings.waste(data), findings.rates(best)]
    sentences = [
        *findings.findings(data),
        findings.server(best),
        findings.waste(data),
        findings.rates(best),
        findings.convergence(data),
        findings.participation(best) if data.is_simulation else "",
        findings.spending(best),
        findings.clipping(data) if data.is_simulation else "",
    ]
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))


class _Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def _escaped(value: object) -> str:
    """What comes from a file is neither a table's edge nor markup."""
    text = str(value)
    if isinstance(value, _Markdown):
        return text
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _table(table: Table) -> _Markdown:
    columns, rows = table
    lines = ["| " + " | ".join(map(_escaped, columns)) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(_escaped(cell.replace("\n", ": ")) for cell in row) + " |" for row in rows]
    return _Markdown("\n".join(lines))


def _fenced(text: str) -> _Markdown:
    fence = "```"
    while fence in text:
        fence += "`"
    return _Markdown(f"{fence}\n{text.strip()}\n{fence}")


def report_markdown(data: ReportData) -> str:
    """The page's text and tables."""
    # Escaped as Markdown is, not as HTML: every value goes through `_escaped`.
    page = templates(autoescape=False, finalize=_escaped).get_template("report.md")
    made = [cost_table(data.headline), plan_table(data.headline), *([method_table(data)] if data.runs else [])]
    tables = list(map(_table, made))
    return page.render(data=data, findings=findings, sentences=_findings(data), fenced=_fenced, tables=tables)
