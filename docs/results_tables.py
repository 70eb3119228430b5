"""The paper's tables beside ours, every row: pages of `reproduce/tables/` from the records in `reproduce/results/`.

Explanations are typed in: `reproduce/notes/EXPERIMENT.md` stands under an experiment's heading,
`EXPERIMENT-DATASET.md` under a data set's table. A note whose name fits nothing is an error.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from paired import difference

from gdpfed.tasks.task import PRESETS, load_task, task_to_toml
from gdpfed_reproduce.experiments import EXPERIMENTS, Experiment, PaperFigure, cells_of
from gdpfed_reproduce.overhead import load_overhead
from gdpfed_reproduce.records import CellRecord, load_records
from gdpfed_reproduce.verdicts import ComparedRow, is_run, rows_of
from gdpfed_reproduce.without_training import noise_table, sampling_table

__all__ = ["PAPER_PLACES", "compared", "markdown_table", "result_tables"]

_OURS = "ours"
PAPER_PLACES = {
    "main": "main table",
    "convergence": "convergence figure",
    "steps": _OURS,
    "models": _OURS,
    "sensitivity": _OURS,
    "normalisation": _OURS,
    "passes": _OURS,
    "widths": _OURS,
    "positions": _OURS,
    "lstms": _OURS,
    "sparsification": "sparsification table",
    "budgets": "privacy-budget table",
    "preferences": "preference table",
    "clipping": "clipping table",
    "heterogeneity": "heterogeneity table, CIFAR-10 only",
}
# What the paper proposes, and what the others are held against.
_BEST = "gdpfed+"
_IMAGES = "../../docs/img"
_BACK = (
    "Written by `docs/generate.py` from `reproduce/results/`; explanations are typed in. How to read it, and what it "
    "comes to: [results](../../docs/results.md)."
)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return _row(*head) + _row(*["---"] * len(head)) + "".join(_row(*row) for row in rows)


def _joined(values: tuple[float, ...], digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values)


def _sampling() -> str:
    rows = [
        (
            ratio.dataset,
            " ".join(f"{epsilon:g}" for epsilon in ratio.epsilons),
            f"{ratio.participation:g}",
            _joined(ratio.paper, 2),
            _joined(ratio.closed_form, 2),
            _joined(ratio.numeric, 2),
            " ".join(f"{difference:+.2f}" for difference in ratio.difference),
            f"{ratio.objective_gap:+.0e}",
        )
        for ratio in sampling_table()
    ]
    head = ("data set", "epsilons", "q", "paper", "ours", "numeric", "difference", "objective")
    return (
        "# Optimal sampling ratios (paper, Table I)\n\nIn percent, strictest group first: `gdpfed reproduce sampling`."
        " Ours is the closed form; a numeric minimisation of the paper's Problem 1, phi* included, agrees to 1e-4. "
        "*Objective* is how much larger Problem 1 is at the paper's ratios than at ours, relatively: it is so flat "
        "that the paper's solver stopped early.\n\n"
        + markdown_table(head, rows)
        + f"\n![Optimal ratios against the strictest group's epsilon]({_IMAGES}/sampling.png)\n"
    )


def _noise() -> str:
    rows = []
    for noise in noise_table():
        difference, magnitude = noise.largest_difference, noise.magnitude_difference
        rows.append(
            (
                noise.dataset,
                noise.method,
                noise.accountant,
                "not printed" if noise.paper_variances is None else _joined(noise.paper_variances, 2),
                _joined(noise.noise_variances, 3),
                "" if difference is None else f"{100 * difference:+.1f} %",
                "not printed" if noise.paper_magnitude is None else f"{noise.paper_magnitude:.2f}",
                f"{noise.magnitude:.3f}",
                "" if magnitude is None else f"{100 * magnitude:+.1f} %",
                f"{noise.at_equal_step:.3f}",
            )
        )
    head = ("data set", "method", "accountant", "paper", "ours", "differs", "paper Lambda", "ours", "differs")
    return (
        "# Noise (paper, noise table)\n\nSquared noise multipliers and the paper's Lambda, at the rates that the "
        "paper prints: `gdpfed reproduce noise`. The paper used RDP and rounds to 0.01. Lambda mixes two scales: a "
        "plain mean for gdpfed, a mean weighted by r^2 and k/d for the last two. *At equal step* is one scale for all "
        "methods ([method](../../docs/method.md)); by it gdpfed adds more noise than dp-fedavg.\n\n"
        + markdown_table((*head, "at equal step"), rows)
        + "\n"
    )


def compared(experiment: Experiment, records: Sequence[CellRecord]) -> dict[str, list[ComparedRow]]:
    """The rows of an experiment, by data set."""
    return {dataset: rows_of(experiment, dataset, records) for dataset in PRESETS}


def _figure(figure: PaperFigure | None) -> str:
    return "not printed" if figure is None else f"{figure.mean:.2f} ± {figure.std:.2f}"


def _ours(row: ComparedRow) -> str:
    return "" if row.mean is None else f"{row.mean:.2f}" + ("" if row.std is None else f" ± {row.std:.2f}")


def _verdict(row: ComparedRow) -> str:
    return "**differs**" if row.verdict == "differs" else row.verdict


def _result_table(experiment: Experiment, rows: Sequence[ComparedRow]) -> str:
    head = ["method", *([experiment.varies] if experiment.varies else []), "paper", "ours", "seeds", "difference"]
    shown = [
        (
            row.label,
            *([row.column] if experiment.varies else []),
            _figure(row.paper),
            _ours(row),
            str(len(row.accuracies)) if row.accuracies else "",
            "" if row.difference is None else f"{row.difference:+.2f}",
            _verdict(row),
        )
        for row in rows
    ]
    return markdown_table([*head, "verdict"], shown)


def _curve_table(rows: Sequence[ComparedRow]) -> str:
    """What the figure shows, at some of its rounds: the paper prints no numbers with it."""
    curves = {row.label: row.record.runs for row in rows if row.record is not None}
    rounds = next(iter(curves.values()))[0].rounds
    shown = sorted({rounds[max(0, len(rounds) * part // 5 - 1)] for part in range(1, 6)})
    made = []
    for label, runs in curves.items():
        at = [[run.accuracies[run.rounds.index(number)] for run in runs if number in run.rounds] for number in shown]
        made.append((label, str(len(runs)), *(f"{sum(values) / len(values):.2f}" if values else "" for values in at)))
    return markdown_table(("method", "seeds", *(f"round {number}" for number in shown)), made)


def _facts(rows: Sequence[ComparedRow]) -> str:
    """What a reader must know of the runs in a table."""
    records = [row.record for row in rows if row.record is not None]
    sizes = sorted({record.parameters for record in records})
    versions = sorted({run.versions for record in records for run in record.runs})
    reduced = sorted({"; ".join(row.reduced) for row in rows if row.reduced})
    text = f"{' and '.join(f'{size:,}' for size in sizes)} parameters; {'; '.join(versions)}."
    return text + (f" **Not the paper's configuration**: {' | '.join(reduced)}." if reduced else "")


def _order(rows: Sequence[ComparedRow]) -> str:
    """The methods that both have, best first."""
    both = [row for row in rows if row.paper is not None and row.mean is not None and not row.reduced]
    if len(both) < 3:
        return ""
    paper = sorted(both, key=lambda row: -row.paper.mean if row.paper else 0)
    ours = sorted(both, key=lambda row: -(row.mean or 0))
    listed = [" > ".join(row.label for row in rows) for rows in (paper, ours)]
    return f"Best first, paper: {listed[0]}. Ours: {listed[1]}.\n\n"


def _named(row: ComparedRow) -> str:
    return f"{row.label}, {row.column}" if row.column else row.label


def _metrics(rows: Sequence[ComparedRow]) -> str:
    """What else was measured after the last round, in the mean over those runs that keep it."""
    kept: dict[str, list[str]] = {}
    for row in rows:
        runs = row.record.runs if row.record is not None else ()
        for name in sorted({name for run in runs for name in run.metrics}):
            values = [run.metrics[name] for run in runs if name in run.metrics]
            seeds = f"{len(values)} {'seed' if len(values) == 1 else 'seeds'}"
            kept.setdefault(name, []).append(f"{_named(row)} {statistics.fmean(values):.2f} ({seeds})")
    return "".join(f"The metric `{name}` after the last round: {'; '.join(said)}.\n\n" for name, said in kept.items())


def _clipped(rows: Sequence[ComparedRow]) -> str:
    """How many updates were longer than the clip norm: where few were, longer local training would be heard."""
    said = []
    for row in rows:
        runs = row.record.runs if row.record is not None else ()
        parts = [run.clipped for run in runs if run.clipped is not None]
        if parts:
            said.append(f"{_named(row)} {100 * statistics.fmean(parts):.0f} %")
    return f"Clipped updates, of all in evaluated rounds, where records keep it: {'; '.join(said)}.\n\n" if said else ""


def _beside_best(rows: Sequence[ComparedRow]) -> str:
    """Each method less the paper's best private one: the paper's means, and ours paired by seed."""
    by_label = {row.label: row for row in rows}
    best = by_label.get(_BEST)
    if best is None or best.record is None or best.paper is None or best.reduced:
        return ""
    lines = [
        (row.label, f"{row.paper.mean - best.paper.mean:+.2f}", difference(row.record, best.record))
        for row in rows
        if row.paper is not None and row.record is not None and not row.reduced and row is not best
    ]
    head = (f"less {_BEST}", "paper", "ours, paired by seed")
    return markdown_table(head, lines) + "\n" if lines else ""


def _note(notes: Path, name: str) -> str:
    path = notes / f"{name}.md"
    return path.read_text(encoding="utf-8").strip() + "\n\n" if path.is_file() else ""


def _experiment(experiment: Experiment, records: Sequence[CellRecord], notes: Path) -> str:
    place = PAPER_PLACES[experiment.name]
    text = f"# {experiment.title} ({place if place == _OURS else f'paper, {place}'})\n\n"
    text += f"`gdpfed reproduce {experiment.name}`.\n\n" + _note(notes, experiment.name)
    tables = compared(experiment, records)
    if any(is_run(rows) for rows in tables.values()):
        text += f"![{experiment.title}, ours and the paper's]({_IMAGES}/{experiment.name}.png)\n\n"
    for dataset, rows in tables.items():
        title = load_task(dataset).title
        run = [row for row in rows if row.accuracies]
        printed = [row for row in rows if row.paper is not None]
        if run:
            text += f"## {title}\n\n{_facts(rows)}\n\n"
            text += _order(rows) if experiment.name == "main" else ""
            if experiment.name == "convergence":
                text += _curve_table(rows) + "\n"
            else:
                text += _result_table(experiment, [row for row in rows if row.accuracies or row.paper]) + "\n"
                text += _beside_best(rows) if experiment.name == "main" else ""
                text += _clipped(rows) + _metrics(rows)
        elif experiment.name == "convergence":
            text += f"{title}: not run.\n\n"
        elif printed:
            text += (
                f"<details><summary>{title}: not run</summary>\n\n{_result_table(experiment, printed)}\n</details>\n\n"
            )
        text += _note(notes, f"{experiment.name}-{dataset}")
    return text


def _contradictions() -> str:
    """Where the paper prints two figures for one configuration."""
    printed: dict[tuple[str, str, str], dict[PaperFigure, list[str]]] = {}
    for experiment in EXPERIMENTS.values():
        if experiment.name == "convergence" or PAPER_PLACES[experiment.name] == _OURS:
            continue
        for dataset in PRESETS:
            for cell in cells_of(experiment, dataset):
                if cell.paper is not None:
                    where = (dataset, cell.task.settings.method, task_to_toml(cell.task))
                    label = f"{experiment.name} {cell.column}".strip()
                    printed.setdefault(where, {}).setdefault(cell.paper, []).append(label)
    rows = [
        (
            load_task(dataset).title,
            method,
            "; ".join(f"{_figure(figure)} ({', '.join(at)})" for figure, at in by.items()),
        )
        for (dataset, method, _), by in printed.items()
        if len(by) > 1
    ]
    return markdown_table(("data set", "method", "the paper's figures for one mechanism"), rows) + "\n"


def _overhead(folder: Path, notes: Path) -> str:
    text = (
        "# Overhead (paper, section on overhead)\n\nSeconds on one core of the machine that ran `gdpfed reproduce "
        "overhead`; the paper's are of a server with GPUs. The paper prints no model sizes: these are of public code "
        "with the models that it names. Solving is done once, Top-k for all groups in every round.\n\n"
    )
    if not (folder / "overhead.json").is_file():
        return text + "Not run.\n\n"
    rows = [
        (
            load_task(row.dataset).title,
            f"{row.paper_solve:g}",
            f"{row.solve_closed_form:.2g}",
            f"{row.solve_numeric:.2g}",
            f"{row.parameters:,}",
            "not printed" if row.paper_topk is None else f"{row.paper_topk:g}",
            f"{row.topk:.2g}",
        )
        for row in load_overhead(folder)
    ]
    head = ("data set", "solve, paper", "closed form", "numeric", "parameters", "Top-k, paper", "Top-k, ours")
    return text + markdown_table(head, rows) + "\n" + _note(notes, "overhead")


def _check_notes(notes: Path) -> None:
    known = {"overhead", *EXPERIMENTS, *(f"{name}-{dataset}" for name in EXPERIMENTS for dataset in PRESETS)}
    for path in sorted(notes.glob("*.md")):
        if path.stem not in {*known, "README"}:
            raise SystemExit(f"{path} explains nothing on the page: expected EXPERIMENT.md or EXPERIMENT-DATASET.md")


def result_tables(folder: Path, notes: Path) -> dict[str, str]:
    """Every page, by its name: from the records in ``folder`` and the explanations in ``notes``."""
    _check_notes(notes)
    records = load_records(folder)
    pages = {"sampling": _sampling(), "noise": _noise()}
    pages |= {name: _experiment(experiment, records, notes) for name, experiment in EXPERIMENTS.items()}
    pages["overhead"] = _overhead(folder, notes)
    pages["contradictions"] = (
        "# Where the paper contradicts itself\n\nFor some mechanisms the paper prints more than one figure; each table "
        "is held against its own print. DP-FedAvg knows only the strictest budget, so its preference columns are one "
        "mechanism, and ours are one set of runs.\n\n" + _contradictions()
    )
    return {name: f"{text.rstrip()}\n\n{_BACK}\n" for name, text in pages.items()}
