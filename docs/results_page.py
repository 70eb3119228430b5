"""Writes `results.md`, the paper's results and ours at a glance, and its pictures: no number of a table is typed in.

What the differences come to is: `reproduce/notes/glance/EXPERIMENT.md` stands under a picture. Every row is in
`reproduce/tables/` (`results_tables.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from results_tables import PAPER_PLACES, compared, markdown_table

from gdpfed.errors import MissingExtraError
from gdpfed.report.pictures import save_figure
from gdpfed.tasks.task import PRESETS, load_task
from gdpfed_reproduce.experiment_plots import plot_convergence, plot_experiment, plot_methods_beside
from gdpfed_reproduce.experiments import EXPERIMENTS
from gdpfed_reproduce.plays import without_learning
from gdpfed_reproduce.records import load_records
from gdpfed_reproduce.verdicts import ComparedRow, is_run

__all__ = ["draw_pictures", "results_page"]

_DRAWN = {"main": plot_methods_beside, "convergence": plot_convergence}
_TABLES = "../reproduce/tables"
# Not of the paper: they explain its tables.
_OWN = ("steps", "models", "sensitivity", "normalisation", "passes", "widths", "positions", "lstms")
Rows = Mapping[str, Sequence[ComparedRow]]


def _counts(rows: Sequence[ComparedRow]) -> str:
    """How many figures of the paper are met; those of runs with fewer rounds or clients are not counted."""
    counts = Counter(row.verdict for row in rows if row.paper is not None)
    judged = counts["within the spread"] + counts["differs"]
    if not counts:
        return ""
    return f"{counts['within the spread']} of {judged}" if judged and is_run(rows) else "not run"


def _overview(tables: Mapping[str, Rows]) -> str:
    rows = [
        (f"[{name}]({_TABLES}/{name}.md)", PAPER_PLACES[name], *(_counts(found) for found in tables[name].values()))
        for name in EXPERIMENTS
        # The paper prints no figures with its curves.
        if name not in (*_OWN, "convergence")
    ]
    return markdown_table(("experiment", "in the paper", *(load_task(name).title for name in PRESETS)), rows)


def _beside(row: ComparedRow | None) -> str:
    """The paper's figure and ours, bold where they differ."""
    if row is None or (row.paper is None and not row.accuracies):
        return ""
    printed = "-" if row.paper is None else f"{row.paper.mean:.2f}"
    if row.mean is None or row.reduced:
        return f"{printed} / -"
    ours = f"{row.mean:.2f}"
    return f"{printed} / " + (f"**{ours}**" if row.verdict == "differs" else ours)


def _main_table(rows: Rows) -> str:
    labels = [row.label for row in rows[PRESETS[0]] if row.paper is not None or row.label == "pooled"]
    by_label = {dataset: {row.label: row for row in found} for dataset, found in rows.items()}
    shown = [(label, *(_beside(by_label[dataset].get(label)) for dataset in PRESETS)) for label in labels]
    return markdown_table(("paper / ours", *(load_task(name).title for name in PRESETS)), shown)


def _summary(rows: Rows) -> str:
    """How far ours are from the paper's on each data set, in a line."""
    said = []
    for dataset, found in rows.items():
        differences = [row.difference for row in found if row.difference is not None]
        if differences and is_run(found):
            ends = " to ".join(dict.fromkeys(f"{end(differences):+.2f}" for end in (min, max)))
            said.append(f"{load_task(dataset).title} {ends}")
    return f"Differences: {'; '.join(said)}." if said else ""


def _note(notes: Path, name: str) -> str:
    path = notes / "glance" / f"{name}.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _check_notes(notes: Path) -> None:
    for path in sorted((notes / "glance").glob("*.md")):
        if path.stem not in {*EXPERIMENTS, "sampling", "top"}:
            raise SystemExit(f"{path} explains nothing on the page: expected EXPERIMENT.md, sampling.md or top.md")


def _experiment(name: str, rows: Rows, notes: Path) -> str:
    experiment = EXPERIMENTS[name]
    parts = [f"## {experiment.title}", f"![{experiment.title}, ours and the paper's](img/{name}.png)"]
    parts += [_main_table(rows).rstrip("\n")] if name == "main" else []
    # The figures of the curves' ends are the main table's.
    summary = "" if name == "convergence" else _summary(rows)
    words = " ".join(part for part in (summary, _note(notes, name)) if part)
    return "\n\n".join([*parts, f"{words} [Every row]({_TABLES}/{name}.md)."]) + "\n\n"


def results_page(folder: Path, notes: Path, *, findings: str) -> str:
    """The whole page, from the records in ``folder``, the words in ``notes`` and the table of ``findings``."""
    _check_notes(notes)
    records = load_records(folder)
    tables = {name: compared(experiment, records) for name, experiment in EXPERIMENTS.items()}
    text = (
        "# The paper's results, and ours\n\nWritten by `docs/generate.py` from the records in `reproduce/results/`. "
        "Test accuracies in percent after the last round, means over seeds; simulations, calibrated by RDP, as the "
        "paper's were. **Within the spread**: |ours - paper| <= 2 sqrt(s^2 / n + p^2 / 3), with s our std over n seeds "
        "and p the paper's over three (with one seed p stands for s); by chance alone about one row in nine would "
        "differ. Differences are ours less the paper's.\n\n"
        f"{_note(notes, 'top')}\n\n"
        f"## Five findings about the paper\n\n{findings}\n"
        "Why, and what we do instead: [limits](limits.md#in-the-paper).\n\n"
        "## What was run\n\nFigures of the paper that ours meet within the spread:\n\n"
        f"{_overview(tables)}\nAlso: [noise]({_TABLES}/noise.md), [overhead]({_TABLES}/overhead.md), "
        f"[figures that contradict each other]({_TABLES}/contradictions.md).\n\n"
        "## Optimal sampling ratios\n\n![Optimal ratios against the strictest group's epsilon](img/sampling.png)\n\n"
        f"{_note(notes, 'sampling')} [Every row]({_TABLES}/sampling.md).\n\n"
    )
    run = [
        name
        for name in EXPERIMENTS
        if any(is_run([row for row in found if not row.reduced]) for found in tables[name].values())
    ]
    text += "".join(_experiment(name, tables[name], notes) for name in run if name not in _OWN)
    words = {name: _note(notes, name) for name in run if name in _OWN}
    if "positions" in words:
        words["positions"] += f" {_who_guesses(tables['main'])}"
    explained = [f"- **[{EXPERIMENTS[name].title}]({_TABLES}/{name}.md).** {said}\n" for name, said in words.items()]
    text += "## What explains the differences\n\nOur own experiments, on FMNIST unless stated:\n\n" if explained else ""
    return (text + "".join(explained)).rstrip("\n") + "\n"


def _who_guesses(rows: Rows) -> str:
    """What knowing the padding alone gives on Shakespeare, beside the paper's figures."""
    padding, guessing = without_learning()
    printed = {row.label: row.paper.mean for row in rows["shakespeare"] if row.paper is not None}
    low, *_, high = sorted(printed[name] for name in ("dp-fedavg", "pfa", "idp-fedavg", "gdpfed"))
    return (
        f'{padding:.1f} % are padding; always answering "space", or "padding" after the end, has {guessing:.2f} %. '
        f"The paper's dp-fedavg, pfa, idp-fedavg and gdpfed have {low:.2f} to {high:.2f} %."
    )


def draw_pictures(folder: Path, images: Path) -> list[Path]:
    """Draws what there are records for; nothing where Matplotlib is missing."""
    records = load_records(folder)
    drawn = []
    for name, experiment in EXPERIMENTS.items():
        tables = compared(experiment, records)
        if not any(is_run(rows) for rows in tables.values()):
            continue
        draw = _DRAWN.get(name)
        try:
            figure = plot_experiment(name, tables) if draw is None else draw(tables)
        except MissingExtraError:
            return drawn
        drawn.append(save_figure(figure, images / f"{name}.png"))
    return drawn
