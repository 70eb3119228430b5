"""A report for machines and for plain text: JSON with every number, Markdown with the same tables and findings.

Place: `ReportData` -> text. Stamped as the page is.

Guarantees (tests of the same name):
  json_has_every_number       records, plans with both epsilons, findings; infinite costs are null.
  markdown_is_stamped_and_complete   stamp, headline, promises, plan, methods, commands.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import gdpfed
from gdpfed.planning.plan_file import plan_as_json
from gdpfed.report import findings as found
from gdpfed.report.contents import MethodRuns, ReportData, RunResult
from gdpfed.report.tables import cost_table, method_table, plan_table
from gdpfed.runs.record import Record

__all__ = ["FORMAT", "report_json", "report_markdown"]

FORMAT = 1


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _record(record: Record) -> dict[str, Any]:
    content = {name: value for name, value in asdict(record).items() if name not in ("vanished", "by_budget", "device")}
    return {**content, "epsilons": [_finite(epsilon) for epsilon in record.epsilons]}


def _as_mapping(run: RunResult) -> dict[str, Any]:
    return {
        "folder": run.folder,
        "seed": run.seed,
        "finished": run.is_finished,
        "rounds_done": run.rounds_done,
        "versions": dict(run.versions),
        "records": [_record(record) for record in run.records],
    }


def _method(method: MethodRuns) -> dict[str, Any]:
    return {
        "label": method.label,
        "method": method.plan.method,
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
        "costs": [
            {
                "group": cost.group.name,
                "num_clients": cost.group.num_clients,
                "delta": cost.group.delta,
                "promised": _finite(cost.group.epsilon),
                "spent_release": _finite(cost.release),
                "kept": cost.keeps_promise,
                "server": {name: _finite(value) for name, value in asdict(cost.server).items()},
            }
            for cost in method.costs
        ],
        "plan": plan_as_json(method.plan),
        "commands": method.commands,
        "run_toml": method.run_toml if method.is_simulation else None,
        "runs": [_as_mapping(run) for run in method.runs],
    }


def report_json(data: ReportData) -> str:
    """One JSON document."""
    content = {
        "format": FORMAT,
        "stamp": data.stamp,
        "gdpfed": gdpfed.__version__,
        "title": data.title,
        "dataset": data.task.training.dataset,
        "model": data.task.training.model,
        "headline": {"method": data.headline.label, "sentence": found.headline(data)},
        "findings": _findings(data),
        "seeds": list(data.seeds),
        "unfinished": [run.folder for run in data.unfinished],
        "software": list(data.software),
        "methods": [_method(method) for method in data.methods],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _findings(data: ReportData) -> list[str]:
    best = data.headline
    sentences = [
        *found.findings(data),
        found.server(best),
        found.waste(data),
        found.rates(best),
        found.convergence(data),
        found.participation(best) if data.is_simulation else "",
        found.spending(best),
        found.clipping(data) if data.is_simulation else "",
    ]
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))


def _plain(text: str) -> str:
    """Text in Markdown: what comes from a file is neither a table's edge nor markup."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(_plain, columns)) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(_plain(cell.replace("\n", ": ")) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.strip()}\n{fence}"


def _seeds(data: ReportData) -> list[str]:
    """A deployment has none: its noise is the operating system's."""
    return ["seeds " + ", ".join(map(str, data.seeds))] if data.is_simulation else []


def report_markdown(data: ReportData) -> str:
    """The page's text and tables."""
    best = data.headline
    parts = [
        f"# {_plain(data.title)}: {_plain(found.headline(data))}",
        f"> **{_plain(data.stamp)}**",
        "\n".join(f"- {_plain(sentence)}" for sentence in _findings(data)),
    ]
    if data.unfinished:
        parts.append(
            "\n".join(
                f"- **Unfinished**: {_plain(run.folder)} (seed {run.seed}) has done {run.rounds_done} rounds."
                for run in data.unfinished
            )
        )
    parts += [
        f"## Promised and spent: {_plain(best.label)}",
        "Epsilons are rounded up; the unit of protection is one client, added or removed. Whoever sees the models does "
        "not know who took part; the server does, and against it each participation costs in full. In brackets: a "
        "client's participations.",
        _table(*cost_table(best)),
        f"## The plan: {_plain(best.label)}",
        f"{best.plan.release} sums, {best.plan.num_rounds} rounds, {best.plan.accountant.upper()} accounting "
        f"({best.plan.accountant_version}), Poisson sampling.",
        _table(*plan_table(best)),
        "## Methods",
        "Mean ± standard deviation over seeds; epsilons group by group.",
        _table(*method_table(data)),
        "## Make it again" if data.is_simulation else "## Compute its cost again",
        "\n".join(f"- {_plain(line)}" for line in (*data.software, *_seeds(data))),
    ]
    for method in data.methods:
        parts += [f"### {_plain(method.label)}", f"plan `{method.plan_hash}`"]
        if method.is_simulation:
            parts += [_fenced("\n".join(method.commands)), _fenced(method.run_toml)]
        else:
            parts += [_fenced(method.check_command)]
    return "\n\n".join([*parts, f"*{_plain(data.stamp)}*"]) + "\n"
