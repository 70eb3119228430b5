"""Writes `beyond.md`, and its long tables, from `reproduce/results/beyond/`: no number of their tables is typed in.

Text between the tables is in `reproduce/notes/beyond/NAME.md`: one for a table where it needs words. What
did not help, measured once and not made again, is in `ideas.json` beside.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paired import difference, pairs, student
from results_tables import markdown_table

from gdpfed.errors import MissingExtraError
from gdpfed.report.paper import paper_tables
from gdpfed.report.pictures import paper_style, save_figure
from gdpfed.tasks.catalogue import public_data_of
from gdpfed.tasks.task import load_task
from gdpfed_reproduce.beyond import (
    AUTO_CHARACTERS,
    AUTO_PAPER,
    AUTO_PLAIN,
    AUTO_ROW,
    AUTO_WITHOUT,
    OWN_SETTINGS,
    PAPER,
    PAPER_CHOSEN,
    PAPER_TUNED,
    PLAIN_SERVER,
    POPULATIONS,
    SAME_CLIP,
    SAME_SERVER,
    TABLES,
    Table,
)
from gdpfed_reproduce.beyond_rows import rows_with_records
from gdpfed_reproduce.records import CellRecord, load_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["beyond_page", "beyond_tables", "draw_beyond"]

# The tables of the headline, in words.
_HEADLINE = {
    "cnn": "FMNIST, the preset's CNN",
    "features": "FMNIST, scattering features",
    "cnn-half": "the CNN, half the budgets",
    "features-half": "features, half the budgets",
    "svhn": "SVHN, scattering features",
    "cifar10": "CIFAR-10, scattering features",
    "shakespeare": "Shakespeare, last characters",
}
# Tables of the method that needs no tuning, in words, and the tuned one beside each.
_UNTUNED = {
    "auto-cnn": ("FMNIST, the preset's CNN", "cnn"),
    "auto-features": ("FMNIST, scattering features", "features"),
    "auto-cnn-half": ("the CNN, half the budgets", "cnn-half"),
    "auto-cnn-strict": ("the CNN, 3:2:1", "cnn-strict"),
    "auto-cnn-dirichlet": ("the CNN, Dirichlet 0.3", "cnn-dirichlet"),
    "auto-features-half": ("features, half the budgets", "features-half"),
    "auto-features-strict": ("features, 3:2:1", "features-strict"),
    "auto-features-dirichlet": ("features, Dirichlet 0.3", "features-dirichlet"),
    "auto-svhn": ("SVHN, centred features (tuned: scattering)", "svhn"),
    "auto-cifar10": ("CIFAR-10, mirrored features (tuned: scattering)", "cifar10"),
    "auto-shakespeare": ("Shakespeare, the word so far (tuned: last characters)", "shakespeare"),
    "auto-own-svhn": ("SVHN, the paper's kind of CNN", ""),
    "auto-own-cifar10": ("CIFAR-10, a narrow ResNet-18", ""),
    "auto-own-shakespeare": ("Shakespeare, an LSTM (padding counts)", ""),
    "auto-public-shakespeare": ("Shakespeare, **public text**", ""),
    "auto-public-cifar10": ("CIFAR-10, **public images**", ""),
}
# What ours is held against after each table, in words.
_HELD_AGAINST = {
    PAPER: "gdpfed+ as in the paper",
    PAPER_TUNED: "gdpfed+ with our settings",
    PAPER_CHOSEN: "gdpfed+ with settings chosen for it",
    SAME_SERVER: "fedavg with the same server",
    PLAIN_SERVER: "fedavg with a plain server",
    SAME_CLIP: "itself with next to no noise",
    OWN_SETTINGS: "fedavg with settings chosen for it",
}
_OURS, _PRIVATE, _NOT_PRIVATE = "#0072b2", "#555555", "#d55e00"
_WITHOUT = (SAME_SERVER, OWN_SETTINGS, SAME_CLIP, PLAIN_SERVER)
_NOTES = ("headline", "auto", "top", "defaults", "limits", "choices", "ideas")
# What issue and page ask of the two models on FMNIST: so far ahead of gdpfed+, at most so far behind no privacy.
_AHEAD, _BEHIND = 3.0, 1.0
# What is asked of the model of our choice: a private accuracy, and what to aim for.
_ASKED, _AIM = 82.0, 84.0
# An opponent with a seed so far below its best one has diverged.
_DIVERGED = 0.75


def _mean(record: CellRecord) -> str:
    accuracies = [run.accuracy for run in record.runs]
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{statistics.fmean(accuracies):.2f}{spread}"


def _holds(values: Sequence[float], bound: float, words: str) -> str:
    """Whether the mean is at least the bound: with its whole interval, by itself alone, or not."""
    found = student(values)
    if found is None:
        return f"{words}: too few seeds" if words else "not run"
    if found[0] < bound:
        return f"{words}: **does not hold**"
    return f"{words}: {'holds, with its interval' if found[1] >= bound else 'holds for the mean only'}"


def _diverges(record: CellRecord) -> bool:
    accuracies = [run.accuracy for run in record.runs]
    return min(accuracies) < _DIVERGED * max(accuracies)


def _verdict(ours: CellRecord, other: CellRecord | None, bound: float) -> str:
    """Whether ours less the other is at least the bound; an opponent that diverges shows nothing."""
    if other is None:
        return "not run"
    if _diverges(other):
        accuracies = [run.accuracy for run in other.runs]
        seeds = f"its seeds lie between {min(accuracies):.1f} and {max(accuracies):.1f}"
        return f"{difference(ours, other)}: no verdict, the opponent diverges ({seeds})"
    return _holds(pairs(ours, other), bound, difference(ours, other))


def _at_least(ours: CellRecord, bound: float) -> str:
    accuracies = [run.accuracy for run in ours.runs]
    found = student(accuracies)
    return _holds(accuracies, bound, f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})" if found else _mean(ours))


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
    public = "".join(
        f" **{model} rests on public data, for which no budget pays: {data}.**"
        for model in models
        if (data := public_data_of(model))
    )
    return (
        f"{', '.join(models)} ({', '.join(f'{size:,}' for size in sizes)} parameters), budgets "
        f"{first.config['budgets']}, {', '.join(map(str, rounds))} rounds, participation "
        f"{', '.join(f'{share:g}' for share in shares)}; seeds {', '.join(map(str, seeds))}.{public}"
    )


def _settings(record: CellRecord) -> str:
    config = record.config
    private = record.method != "fedavg"
    words = [
        f"rate {config['learning_rate']:g}",
        f"clip {config['clip_norm']:g}" if private else "no clip",
        f"step {config['server_learning_rate']:.3g}",
    ]
    words += [f"averaging {config['averaging']:g}"] if config.get("averaging") else []
    return ", ".join([*words, config["accountant"] if private else "no noise"])


def _tuning(table: Table, found: Mapping[str, CellRecord]) -> str:
    rows = [
        (label, f"{record.runs[0].accuracy:.2f}" + (" **chosen**" if label == table.chosen else ""))
        for label, record in sorted(found.items(), key=lambda entry: -entry[1].runs[0].accuracy)
    ]
    return markdown_table(("settings", "accuracy on validation examples"), rows)


def _rows(table: Table, found: Mapping[str, CellRecord]) -> str:
    ours = found.get("ours")
    head = ["row", "settings", "accuracy", "seeds", "less ours (95 % interval)"]
    tied = any(run.by_budget for record in found.values() for run in record.runs)
    head += ["by budget, strictest first"] if tied else []
    rows = []
    for label in table.rows:
        record = found.get(label)
        if record is None:
            continue
        name = f"**{label}**" if label == "ours" else label
        cells = [name, _settings(record), _mean(record), str(len(record.runs)), difference(record, ours)]
        rows.append([*cells, _by_budget(record)] if tied else cells)
    text = markdown_table(head, rows)
    if ours is not None:
        words = [f"{name}: **{difference(ours, found[row])}**" for row, name in _HELD_AGAINST.items() if row in found]
        text += f"\nours less {'; less '.join(words)}.\n" if words else ""
    return text


def _means(name: str, found: Mapping[str, CellRecord], rows: Sequence[str]) -> list[str]:
    """Ours first, and bold; empty where a table has no such row."""
    cells = [(_mean(found[row]) if row in found else "not run") if row in TABLES[name].rows else "" for row in rows]
    return [f"**{cells[0]}**", *cells[1:]]


def _seeds(found: Mapping[str, CellRecord]) -> str:
    """How many: the fewest of any row."""
    return str(min(len(record.runs) for record in found.values())) if found else ""


def _headline(tables: Mapping[str, Mapping[str, CellRecord]]) -> str:
    """Ours, gdpfed+, no privacy and the paper's figures, for each data set and model."""
    printed = paper_tables()["main_accuracy"]
    rows = []
    for name, words in _HEADLINE.items():
        found, (dataset, *_) = tables[name], TABLES[name].datasets
        theirs = [f"{printed[method][dataset]['mean']:.2f}" for method in ("gdpfed+", "p-fedavg")]
        if "half" in name:
            theirs[0] = f"{paper_tables()['privacy_budget_scale'][dataset]['gdpfed+'][0][0]:.2f}"
        cells = _means(name, found, ("ours", PAPER, PAPER_TUNED, SAME_SERVER, OWN_SETTINGS))
        rows.append([words, *cells, *theirs, _seeds(found)])
    head = (
        "", "ours", "gdpfed+", "gdpfed+, our settings", "fedavg, same server", "fedavg, its own settings",
        "paper: gdpfed+", "paper: no privacy", "seeds",
    )  # fmt: skip
    return markdown_table(head, rows)


def _untuned(tables: Mapping[tuple[str, str], Mapping[str, CellRecord]]) -> str:
    """`auto` beside what was tuned, the paper's method as printed and with the same server, and no privacy."""
    rows = []
    for name, (words, tuned_name) in _UNTUNED.items():
        (dataset,) = TABLES[name].datasets
        found, tuned = tables[name, dataset], tables.get((tuned_name, dataset), {})
        auto, ours = found.get(AUTO_ROW), tuned.get("ours")
        if auto is None:
            continue
        plain = found.get(PLAIN_SERVER) or found.get(AUTO_WITHOUT)
        without = plain or tuned.get(OWN_SETTINGS) or tuned.get(SAME_SERVER)
        beside = [ours, tuned.get(PAPER) or found.get(PAPER), found.get(AUTO_PAPER), without]
        cells = ["" if record is None else _mean(record).partition(" ")[0] for record in beside]
        rows.append([words, f"**{_mean(auto)}**", *cells, difference(auto, ours), str(len(auto.runs))])
    head = ("", "auto", "tuned", "gdpfed+", "gdpfed+ with auto", "no privacy", "auto less tuned", "seeds of auto")
    return markdown_table(head, rows)


def _parts(tables: Mapping[tuple[str, str], Mapping[str, CellRecord]]) -> str:
    """What each part of `auto` gains, by the row that leaves it out."""
    rows = []
    for part, words in (("parts", ""), ("few-lax", f" where {POPULATIONS['few-lax'][0]}")):
        both = [tables[f"auto-{name}-{part}", "fmnist"] for name in ("features", "cnn")]
        for row in TABLES[f"auto-features-{part}"].rows:
            if row != AUTO_ROW and any(row in found for found in both):
                gains = [difference(found[AUTO_ROW], found[row]) if row in found else "not run" for found in both]
                rows.append((f"{row}{words}", *gains))
    for dataset in ("svhn", "cifar10", "shakespeare"):
        found = tables[f"auto-{dataset}", dataset]
        for plain in (AUTO_PLAIN, AUTO_CHARACTERS):
            if AUTO_ROW in found and plain in found:
                words = f"{plain}, on {load_task(dataset).title}"
                rows.append((words, difference(found[AUTO_ROW], found[plain]), ""))
    return markdown_table(("the row without a part of auto", "auto gains, features", "auto gains, the CNN"), rows)


def _spreads(tables: Mapping[tuple[str, str], Mapping[str, CellRecord]]) -> str:
    """How little it matters where `auto` begins, and how clients train."""
    lines = []
    for name, words in (
        ("auto-norms", "Clip norms to start from, features"),
        ("auto-features-rates", "Local learning rates, features"),
        ("auto-cnn-rates", "Local learning rates, the CNN"),
    ):
        found = tables[name, "fmnist"]
        means = [
            f"{label.rpartition(' ')[2]}: {statistics.fmean(run.accuracy for run in record.runs):.2f}"
            for label, record in found.items()
        ]
        lines += [f"- {words}: {', '.join(means)}."] if means else []
    return "\n".join(lines) + "\n"


def _clipping(record: Path | None) -> str:
    """`auto` beside adaptive clipping, from the benchmark's record."""
    if record is None or not record.is_file():
        return ""
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    methods, models = (list(dict.fromkeys(row[name] for row in rows)) for name in ("method", "model"))
    found = {(row["method"], row["model"]): row["accuracies"] for row in rows}
    lines = [(method, *(f"{statistics.fmean(found[method, model]):.2f}" for model in models)) for method in methods]
    seeds = {len(values) for values in found.values()}
    head = f"at the same budgets, {max(seeds)} seeds" if len(seeds) == 1 else "at the same budgets"
    return markdown_table((head, *models), lines) + "\n"


def _asked(tables: Mapping[str, Mapping[str, CellRecord]]) -> str:
    """What was asked for on FMNIST, and whether it holds."""
    rows = []
    for name in ("cnn", "cnn-half", "features", "features-half"):
        found, words = tables[name], _HEADLINE[name]
        ours = found.get("ours")
        if ours is None:
            continue
        if name.startswith("features"):
            rows += [(f"{words}: at least {bound:g} %, private", _at_least(ours, bound)) for bound in (_ASKED, _AIM)]
        rows.append((f"{words}: {_AHEAD:g} points ahead of gdpfed+", _verdict(ours, found.get(PAPER), _AHEAD)))
        rows += [
            (f"{words}: within {_BEHIND:g} point of {_HELD_AGAINST[row]}", _verdict(ours, found.get(row), -_BEHIND))
            for row in (SAME_SERVER, OWN_SETTINGS, SAME_CLIP)
        ]
    return markdown_table(("asked, or worth asking", "measured (95 % interval); ours less the other"), rows)


# What `gdpfed plan --objective` recommends, and the row that leaves it out.
_DEFAULTS = {
    "method pooled": "ours without pooling (gdpfed-opc, inverse variance)",
    "accountant pld": "ours with RDP",
    "a server step above 1": "ours with step 1",
    "averaging": "ours without averaging",
    "a small clip norm": "ours with the preset's clip norm, the same noise",
    "rates for the largest signal-to-noise, not uniform": "ours with uniform rates",
}


def _defaults(tables: Mapping[str, Mapping[str, CellRecord]]) -> str:
    """What each recommended default gains, by the row that leaves it out."""
    rows = []
    for words, row in _DEFAULTS.items():
        gains = [
            difference(found["ours"], found[row]) if "ours" in found and row in found else "not run"
            for found in (tables["features"], tables["cnn"])
        ]
        rows.append((words, row, *gains))
    return markdown_table(("recommended", "the row without it", "gain, features", "gain, the CNN"), rows)


def _note(notes: Path, name: str) -> str:
    path = notes / f"{name}.md"
    return path.read_text(encoding="utf-8").strip() + "\n\n" if path.is_file() else ""


def _all_found(folder: Path) -> dict[tuple[str, str], dict[str, CellRecord]]:
    """The rows that have records, of each table and data set."""
    # Some rows are the paper's own cells, whose runs have records of their own.
    records = [*load_records(folder), *load_records(folder.parent)]
    return {
        (table.name, dataset): rows_with_records(table, dataset, records)
        for table in TABLES.values()
        for dataset in table.datasets
    }


def draw_beyond(folder: Path, images: Path) -> Path | None:
    """Every row of the two ablations, a dot for each seed; nothing without records or where Matplotlib is missing."""
    tables = _all_found(folder)
    shown = {name: tables[name, "fmnist"] for name in ("cnn", "features") if tables[name, "fmnist"]}
    try:
        return save_figure(_picture(shown), images / "beyond.png") if shown else None
    except MissingExtraError:
        return None


def _picture(shown: Mapping[str, Mapping[str, CellRecord]]) -> "Figure":
    with paper_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.4, 1.0 + 0.24 * sum(map(len, shown.values()))), layout="constrained")
        figure.text(
            0.995, 0.998, "simulation: not a private release", ha="right", va="top", fontsize=6, color="#777777"
        )
        axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=[len(found) for found in shown.values()])
        for axis, (name, found) in zip(axes[:, 0], shown.items(), strict=True):
            steady = [entry for entry in found.items() if not _diverges(entry[1])]
            rows = sorted(steady, key=lambda entry: statistics.fmean(run.accuracy for run in entry[1].runs))
            left_out = [label for label, record in found.items() if _diverges(record)]
            printed = paper_tables()["main_accuracy"]["p-fedavg"]["fmnist"]["mean"]
            axis.axvline(printed, color="#888888", linewidth=1, linestyle="--", label="the paper, no privacy")
            for place, (label, record) in enumerate(rows):
                accuracies = [run.accuracy for run in record.runs]
                colour = _OURS if label == "ours" else _NOT_PRIVATE if label in _WITHOUT else _PRIVATE
                axis.plot(accuracies, [place] * len(accuracies), "o", color=colour, markersize=3.5, alpha=0.5)
                axis.plot([statistics.fmean(accuracies)], [place], "|", color=colour, markersize=13, markeredgewidth=2)
            axis.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
            for text in axis.get_yticklabels():
                text.set_fontweight("bold" if text.get_text() == "ours" else "normal")
            axis.set_ylim(-0.7, len(rows) - 0.3)
            axis.set_title(_HEADLINE[name], loc="left", fontsize=10)
            if left_out:
                axis.set_xlabel(f"left out, as it diverges: {', '.join(left_out)}", loc="left", fontsize=8)
            axis.grid(visible=False, axis="y")
        for colour, words in ((_OURS, "ours"), (_PRIVATE, "private"), (_NOT_PRIVATE, "not private, or nearly so")):
            axes[0, 0].plot([], [], "o", color=colour, markersize=3.5, label=words)
        axes[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
        figure.supxlabel("test accuracy (%): a dot for each seed, a bar for the mean", fontsize=9)
        return figure


def _check_notes(notes: Path) -> None:
    for path in sorted(notes.glob("*.md")):
        if path.stem not in {*_NOTES, *TABLES}:
            raise SystemExit(f"{path} explains nothing on the page: expected TABLE.md or one of {', '.join(_NOTES)}")


def beyond_page(folder: Path, notes: Path) -> str:
    """The page of results: what came out, tuned and not, and what limits it."""
    _check_notes(notes)
    tables = _all_found(folder)
    first = {name: tables[name, TABLES[name].datasets[0]] for name in _HEADLINE}
    return (
        "# Better than the paper at its own budgets\n\nWritten by `docs/generate.py` from the records in "
        "`reproduce/results/beyond/`, which `gdpfed reproduce beyond` makes. "
        "Accuracies are test accuracies in percent after the last round, mean ± sample std over seeds. Differences are "
        "paired by seed, with Student's 95 % interval. All runs are **simulations**; every budget is kept: ours "
        "by PLD, gdpfed+ by RDP, as the paper does. Every row and every setting that was tried: "
        "[tables](../reproduce/tables/beyond.md).\n\n"
        f"{_headline(first)}\n{_note(notes, 'headline')}"
        "![Every row of the two ablations](img/beyond.png)\n\n"
        f"## Nothing tuned\n\n{_untuned(tables)}\n{_note(notes, 'auto')}"
        f"{_note(notes, 'limits')}"
    ).rstrip("\n") + "\n"


def beyond_tables(folder: Path, notes: Path, *, clipping: Path | None = None) -> dict[str, str]:
    """Every table: the rows in one page, the choices of settings in another. ``clipping`` is the record of
    `benchmarks/adaptive_clipping.py`."""
    tables = _all_found(folder)
    first = {name: tables[name, TABLES[name].datasets[0]] for name in _HEADLINE}
    rows = (
        "# Better than the paper: every row\n\nWritten by `docs/generate.py` from `reproduce/results/beyond/`; text "
        "between the tables is typed in, and so is the table of ideas that did not help. What it comes to: "
        "[beyond](../../docs/beyond.md). How settings were chosen: [choices](beyond-choices.md).\n\n"
        + _note(notes, "top")
        + f"## What each default gains\n\n{_defaults(first)}\n{_note(notes, 'defaults')}"
        + f"## What each part of auto gains\n\n{_parts(tables)}\n{_spreads(tables)}\n{_clipping(clipping)}"
        + f"## What was asked\n\n{_asked(first)}\n"
    )
    choices = (
        "# Better than the paper: how settings were chosen\n\nWritten by `docs/generate.py` from "
        "`reproduce/results/beyond/`. What it comes to: [beyond](../../docs/beyond.md).\n\n" + _note(notes, "choices")
    )
    for (name, dataset), found in tables.items():
        table = TABLES[name]
        text = f"## {table.title} ({dataset})\n\n"
        if found:
            text += f"{POPULATIONS[table.population][0].capitalize()}. {_facts(list(found.values()))}\n\n"
            text += (_tuning(table, found) if table.chosen else _rows(table, found)) + "\n" + _note(notes, table.name)
        else:
            text += "Not run.\n\n"
        if table.chosen:
            choices += text
        else:
            rows += text
    # Beside the notes: it is typed in, and no record.
    ideas = notes / "ideas.json"
    if ideas.is_file():
        rows += "## Ideas that did not help\n\n" + _note(notes, "ideas") + _ideas(ideas)
    return {"beyond": rows.rstrip("\n") + "\n", "beyond-choices": choices.rstrip("\n") + "\n"}


def _ideas(path: Path) -> str:
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = [(row["idea"], row["measured"], row["verdict"]) for row in content["ideas"]]
    return markdown_table(("idea", "measured", "verdict"), rows)
