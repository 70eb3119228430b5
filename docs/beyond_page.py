"""Writes `beyond.md` from `reproduce/results/beyond/`: no number of a table on that page is typed in.

Text between the tables is in `reproduce/notes/beyond/NAME.md`: `top`, then one for a table where it needs words. What
did not help, measured once and not made again, is in `ideas.json` beside.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from results_page import markdown_table
from scipy import stats

from gdpfed.results.beyond import POPULATIONS, TABLES, TUNING, Table, cells_of_table
from gdpfed.results.records import CellRecord, config_of, differences, load_records

__all__ = ["beyond_page"]

_CONFIDENCE = 0.95


def _mean(record: CellRecord) -> str:
    accuracies = [run.accuracy for run in record.runs]
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{statistics.fmean(accuracies):.2f}{spread}"


def _difference(record: CellRecord, other: CellRecord | None) -> str:
    """Paired by seed, with a Student interval."""
    if other is None or other is record:
        return ""
    theirs = {run.seed: run.accuracy for run in other.runs}
    pairs = [run.accuracy - theirs[run.seed] for run in record.runs if run.seed in theirs]
    if len(pairs) < 2:
        return f"{pairs[0]:+.2f}" if pairs else ""
    reach = stats.t.ppf((1 + _CONFIDENCE) / 2, len(pairs) - 1) * statistics.stdev(pairs) / math.sqrt(len(pairs))
    middle = statistics.fmean(pairs)
    return f"{middle:+.2f} ({middle - reach:+.2f} to {middle + reach:+.2f})"


def _by_budget(record: CellRecord) -> str:
    columns = list(zip(*(run.by_budget for run in record.runs), strict=True))
    return " / ".join(f"{statistics.fmean(column):.1f}" for column in columns)


def _facts(records: Sequence[CellRecord]) -> str:
    # FedAvg's runs are shared by all budgets.
    first = next((record for record in records if record.method != "fedavg"), records[0])
    seeds = sorted({run.seed for record in records for run in record.runs})
    sizes = sorted({record.parameters for record in records})
    models = sorted({record.config["training"]["model"] for record in records})
    rounds = sorted({record.config["num_rounds"] for record in records})
    shares = sorted({record.config["participation"] for record in records})
    return (
        f"{', '.join(models)} ({', '.join(f'{size:,}' for size in sizes)} parameters), budgets "
        f"{first.config['budgets']}, {', '.join(map(str, rounds))} rounds, participation "
        f"{', '.join(f'{share:g}' for share in shares)}; seeds {', '.join(map(str, seeds))}."
    )


def _settings(record: CellRecord) -> str:
    config = record.config
    private = record.method != "fedavg"
    words = [f"clip {config['clip_norm']:g}" if private else "no clip", f"step {config['server_learning_rate']:g}"]
    words += [f"averaging {config['averaging']:g}"] if config.get("averaging") else []
    return ", ".join([*words, config["accountant"] if private else "no noise"])


def _tuning(found: Mapping[str, CellRecord]) -> str:
    best = max(found.values(), key=lambda record: record.runs[0].accuracy)
    rows = [
        (label, f"{record.runs[0].accuracy:.2f}" + (" **best**" if record is best else ""))
        for label, record in sorted(found.items(), key=lambda entry: -entry[1].runs[0].accuracy)
    ]
    return markdown_table(("settings", "accuracy on validation images"), rows)


def _rows(table: Table, found: Mapping[str, CellRecord]) -> str:
    ours = found.get("ours")
    private = table.baseline
    head = ["row", "settings", "accuracy", "seeds", "less ours (95 % interval)"]
    tied = any(run.by_budget for record in found.values() for run in record.runs)
    head += ["by budget, strictest first"] if tied else []
    rows = []
    for label in table.rows:
        record = found.get(label)
        if record is None:
            continue
        name = f"**{label}**" if label == "ours" else label
        cells = [name, _settings(record), _mean(record), str(len(record.runs)), _difference(record, ours)]
        rows.append([*cells, _by_budget(record)] if tied else cells)
    text = markdown_table(head, rows)
    reference, baseline = found.get("fedavg, same server"), found.get(private)
    if ours is not None:
        words = []
        if baseline is not None:
            words.append(f"ours less {private}: **{_difference(ours, baseline)}**")
        if reference is not None:
            words.append(f"ours less fedavg with the same server: **{_difference(ours, reference)}**")
        text += "\n" + "; ".join(words) + ".\n" if words else ""
    return text


def _found(table: Table, dataset: str, records: Sequence[CellRecord]) -> dict[str, CellRecord]:
    """Each row's record, by its configuration, with the runs of the table's seeds from wherever they are recorded."""
    found = {}
    for cell in cells_of_table(table, dataset):
        wanted = config_of(cell.task)
        same = [
            record
            for record in records
            if (record.dataset, record.scale) == (dataset, "full") and not differences(record.config, wanted)
        ]
        runs = {run.seed: run for record in same for run in record.runs if run.seed in table.seeds}
        if runs:
            found[cell.column] = dataclasses.replace(same[0], runs=tuple(runs[seed] for seed in sorted(runs)))
    return found


def _note(notes: Path, name: str) -> str:
    path = notes / f"{name}.md"
    return path.read_text(encoding="utf-8").strip() + "\n\n" if path.is_file() else ""


def beyond_page(folder: Path, notes: Path) -> str:
    """The whole page."""
    # Some rows are the paper's own cells, whose runs have records of their own.
    records = [*load_records(folder), *load_records(folder.parent)]
    for path in sorted(notes.glob("*.md")):
        if path.stem not in {"top", "ideas", *TABLES}:
            raise SystemExit(f"{path} explains nothing on the page: expected top.md, ideas.md or TABLE.md")
    text = (
        "# Better than the paper at its own budgets\n\nWritten by `docs/generate.py` from the records in "
        "`reproduce/results/beyond/`, which `gdpfed reproduce beyond` makes; no number of a table is typed in, "
        "but for that of the ideas that did not help. "
        "Accuracies are test accuracies in percent after the last round, mean ± sample std over seeds. Differences are "
        "paired by seed, with Student's 95 % interval. All runs are **simulations**; every budget is kept, by the "
        "accountant that the row names (PLD unless it says RDP).\n\n"
    ) + _note(notes, "top")
    for table in TABLES.values():
        for dataset in table.datasets:
            found = _found(table, dataset, records)
            if not found:
                text += f"## {table.title} ({dataset})\n\nNot run.\n\n"
                continue
            text += f"## {table.title} ({dataset})\n\n{POPULATIONS[table.population][0].capitalize()}. "
            text += _facts(list(found.values())) + "\n\n"
            text += _tuning(found) if table.name in TUNING else _rows(table, found)
            text += "\n" + _note(notes, table.name)
    # Beside the notes: it is typed in, and no record.
    ideas = notes / "ideas.json"
    if ideas.is_file():
        text += "## Ideas that did not help\n\n" + _note(notes, "ideas") + _ideas(ideas)
    return text.rstrip("\n") + "\n"


def _ideas(path: Path) -> str:
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = [(row["idea"], row["measured"], row["verdict"]) for row in content["ideas"]]
    return markdown_table(("idea", "measured", "verdict"), rows)
