"""The experiments as pictures, ours beside the paper's.

Place: records -> rows -> pictures, in the style of `plots`. Ours is filled, with a bar of one std to either side; the
paper's is hollow, and its lines are dashed. A panel for each data set that has records; what was run at a reduced
scale says so in the panel's title.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdpfed.report.pictures import COLOURS, MARKERS, blank_figure, draw_curve, line_style, paper_style
from gdpfed.tasks.task import load_task
from gdpfed_reproduce.experiments import EXPERIMENTS
from gdpfed_reproduce.verdicts import ComparedRow, is_run
from gdpfed_reproduce.without_training import SweepLine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_convergence", "plot_experiment", "plot_methods_beside", "plot_sampling_sweep"]

Tables = Mapping[str, Sequence[ComparedRow]]


def _with_records(tables: Tables) -> dict[str, list[ComparedRow]]:
    return {dataset: list(rows) for dataset, rows in tables.items() if is_run(rows)}


def _title(dataset: str, rows: Sequence[ComparedRow]) -> str:
    title = load_task(dataset).title
    reduced = {"; ".join(row.reduced) for row in rows if row.reduced}
    return f"{title}, reduced" if reduced else title


def _panels(count: int, *, height: float) -> tuple["Figure", Sequence[Any]]:
    """Two beside each other, each of this height."""
    columns = min(count, 2)
    figure = blank_figure(5.4 * columns, height * -(-count // columns))
    stamp = "simulation: not a private release"
    figure.text(0.995, 0.995, stamp, ha="right", va="top", fontsize=6, color="#777777")
    axes = list(figure.subplots(-(-count // columns), columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def _mark(index: int, *, hollow: bool = False) -> dict[str, Any]:
    look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
    return {**look, "markerfacecolor": "none"} if hollow else look


def _legend(figure: "Figure", axes: Sequence[Any], *, across: int = 3) -> None:
    """One legend for all panels, below them."""
    by_label = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        by_label.update(dict(zip(labels, handles, strict=True)))
    figure.legend(
        list(by_label.values()),
        list(by_label),
        loc="outside lower center",
        ncols=min(across, len(by_label)),
        frameon=False,
        fontsize=8,
    )


def _are_numbers(columns: Sequence[str]) -> bool:
    """Whether columns are values of one number, so that a line between them means something."""
    try:
        return all(math.isfinite(float(column.removesuffix("x"))) for column in columns)
    except ValueError:
        return False


def plot_experiment(name: str, tables: Tables) -> "Figure":
    """Accuracy against what the experiment varies, a line for each method."""
    with_records = _with_records(tables)
    experiment = EXPERIMENTS[name]
    columns = list(experiment.columns)
    ordered = _are_numbers(columns)
    with paper_style():
        figure, axes = _panels(len(with_records), height=4.0)
        for axis, (dataset, rows) in zip(axes, with_records.items(), strict=True):
            labels = [method.label for method in experiment.methods]
            for index, label in enumerate(labels):
                own = {row.column: row for row in rows if row.label == label}
                run = [(columns.index(column), row) for column, row in own.items() if row.mean is not None]
                printed = [(columns.index(column), row.paper) for column, row in own.items() if row.paper is not None]
                if run:
                    axis.errorbar(
                        [x for x, _ in run],
                        [row.mean for _, row in run],
                        yerr=[row.std or 0.0 for _, row in run],
                        **_mark(index),
                        linestyle="-" if ordered else "none",
                        capsize=2.5,
                        label=f"{label}, ours",
                    )
                if printed:
                    axis.plot(
                        [x + 0.06 for x, _ in printed],
                        [paper.mean for _, paper in printed],
                        **_mark(index, hollow=True),
                        linestyle="--" if ordered else "none",
                        linewidth=1,
                        label=f"{label}, paper",
                    )
            slanted = max(map(len, columns)) > 6 and len(columns) > 3
            axis.set_xticks(
                range(len(columns)), columns, rotation=35 if slanted else 0, ha="right" if slanted else "center"
            )
            axis.set_title(_title(dataset, rows), loc="left")
            axis.set(xlabel=experiment.varies, ylabel="test accuracy (%)")
            axis.grid(visible=False, axis="x")
        _legend(figure, axes)
        return figure


def plot_methods_beside(tables: Tables) -> "Figure":
    """The main table: every method on a line of its own, ours and the paper's; two panels beside each other. What was
    run at a reduced scale is left out.
    """
    with_records = _with_records(tables)
    with paper_style():
        figure, axes = _panels(len(with_records), height=3.6)
        for axis, (dataset, rows) in zip(axes, with_records.items(), strict=True):
            shown = [row for row in rows if row.paper is not None or row.accuracies][::-1]
            labels = [row.label for row in shown]
            for height, (label, row) in enumerate(zip(labels, shown, strict=True)):
                style: dict[str, Any] = {"capsize": 2.5, "linestyle": "none"}
                if row.paper is not None:
                    named = "paper" if label == "fedavg" else None
                    paper = (row.paper.mean, height - 0.14)
                    axis.errorbar(*paper, xerr=row.paper.std, label=named, **_mark(1, hollow=True), **style)
                if row.mean is not None and not row.reduced:
                    named = "ours" if label == "fedavg" else None
                    axis.errorbar(row.mean, height + 0.14, xerr=row.std or 0.0, label=named, **_mark(0), **style)
            axis.set_yticks(range(len(labels)), labels)
            axis.set_title(load_task(dataset).title, loc="left")
            axis.set(xlabel="test accuracy (%)")
        _legend(figure, axes)
        return figure


def plot_convergence(tables: Tables) -> "Figure":
    """Accuracy against rounds, and the paper's end."""
    with_records = _with_records(tables)
    with paper_style():
        figure, axes = _panels(len(with_records), height=4.0)
        for axis, (dataset, rows) in zip(axes, with_records.items(), strict=True):
            for index, row in enumerate(rows):
                if row.record is None:
                    continue
                rounds = row.record.runs[0].rounds
                columns = list(zip(*(run.accuracies for run in row.record.runs), strict=True))
                draw_curve(axis, rounds, columns, label=row.label, **line_style(index))
                if row.paper is not None and not row.reduced:
                    label = f"{row.label}, paper's end"
                    axis.plot(rounds[-1], row.paper.mean, **_mark(index, hollow=True), linestyle="none", label=label)
            axis.set_title(_title(dataset, rows), loc="left")
        _legend(figure, axes, across=4)
        return figure


def plot_sampling_sweep(lines: Sequence[SweepLine]) -> "Figure":
    """Optimal sampling ratios against the strictest group's epsilon, a panel for each data set."""
    with paper_style():
        figure = blank_figure(4.6 * len(lines), 3.6)
        axes = figure.subplots(1, len(lines), squeeze=False)[0]
        for axis, line in zip(axes, lines, strict=True):
            labels = ["group 1 (varied)"] + [
                f"group {number} (epsilon {epsilon:g})" for number, epsilon in enumerate(line.fixed_epsilons, start=2)
            ]
            for index, (label, rates) in enumerate(zip(labels, line.rates, strict=True)):
                percent = [100 * rate for rate in rates]
                axis.plot(line.strictest_epsilons, percent, label=label, **line_style(index))
            axis.axvline(line.fixed_epsilons[0], color="#888888", linewidth=0.8)
            axis.annotate(
                "equal budgets,\nequal ratios",
                (line.fixed_epsilons[0], axis.get_ylim()[1]),
                xytext=(-4, -4),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=8,
                color="#555555",
            )
            axis.set(
                title=line.dataset,
                xlabel="epsilon of group 1",
                ylabel="sampling ratio (%)",
                xlim=(0, None),
                ylim=(0, None),
            )
            axis.legend(loc="lower right", fontsize=8, framealpha=1.0, edgecolor="white")
        return figure
