"""The figures of a report as files for a paper: SVG, PNG or PDF.

Place: `ReportData` -> Matplotlib figures, in the style of `plots`. Colours, dashes and markers are those of the page;
every figure carries the stamp.

Guarantees (tests of the same name):
  every_picture_is_stamped   as the page is.
  pictures_are_whole         all are drawn before one is written, and each is written whole or not at all.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpfed.errors import InputError
from gdpfed.report import svg as report_svg
from gdpfed.report.colours import LIGHT
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.findings import cohort_range
from gdpfed.report.pictures import paper_style
from gdpfed.report.whole_file import check_place, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "report_figures", "write_figures"]

FORMATS = ("svg", "png", "pdf")
_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "plus": "P",
    "cross": "X",
    "ring": "o",
    "star": "*",
    "box": "s",
}


def _look(place: int) -> dict[str, Any]:
    marker = report_svg.MARKERS[place % len(report_svg.MARKERS)]
    dash = report_svg.DASHES[place % len(report_svg.DASHES)]
    colour = LIGHT[f"c{place % report_svg.NUM_COLOURS}"]
    return {
        "color": colour,
        "marker": _MARKERS[marker],
        "markerfacecolor": "white" if marker in ("ring", "box") else colour,
        "linestyle": (0, tuple(float(part) / 1.6 for part in dash.split())) if dash else "-",
    }


def _group_colour(place: int) -> str:
    return LIGHT[f"g{place % report_svg.NUM_GROUP_COLOURS}"]


def report_figures(data: ReportData) -> dict[str, "Figure"]:
    """The figures by name: convergence, accuracy, mechanism, participation."""
    with paper_style():
        made = {
            "convergence": _convergence(data),
            "accuracy": _accuracy(data),
            "mechanism": _mechanism(data),
            "participation": _participation(data.headline),
        }
        for figure in made.values():
            if figure is not None:
                figure.supxlabel(data.stamp, fontsize=6.5, color="#666666", x=0.995, ha="right")
        return {name: figure for name, figure in made.items() if figure is not None}


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _convergence(data: ReportData) -> "Figure":
    figure = _figure(6.8, 4.2)
    axis = figure.subplots()
    for method in data.methods:
        columns = [method.accuracies_at(number) for number in method.rounds]
        means = [sum(values) / len(values) for values in columns]
        look = _look(method.index)
        axis.plot(
            method.rounds,
            means,
            **look,
            markersize=4.5,
            markevery=max(1, len(means) // 12),
            linewidth=2.2 if method is data.headline else 1.3,
            label=f"{_named(method)} ({method.mean:.1f})",
        )
        if len(method.counted) > 1:
            lowest, highest = [min(values) for values in columns], [max(values) for values in columns]
            axis.fill_between(method.rounds, lowest, highest, color=look["color"], alpha=0.14, linewidth=0)
    axis.set(title=data.title, xlabel="round", ylabel="test accuracy (%)")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _named(method: MethodRuns) -> str:
    return method.label if method.is_finished else f"{method.label}, unfinished"


def _accuracy(data: ReportData) -> "Figure":
    figure = _figure(6.8, 0.9 + 0.36 * len(data.methods))
    axis = figure.subplots()
    for row, method in enumerate(data.methods):
        look = _look(method.index)
        axis.barh(row, method.mean, xerr=method.std, color=look["color"], alpha=0.75, height=0.62, capsize=3)
        axis.plot(method.accuracies, [row] * len(method.accuracies), "|", color="#1d1c1a", markersize=9)
        spread = "" if method.std is None else f" ± {method.std:.2f}"
        axis.annotate(
            f"{method.mean:.2f}{spread}",
            (method.mean + (method.std or 0.0), row),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_yticks(range(len(data.methods)), [_named(method) for method in data.methods])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="test accuracy (%), mean ± std over seeds", xlim=(0, max(m.mean for m in data.methods) * 1.22))
    return figure


def _mechanism(data: ReportData) -> "Figure | None":
    private = [method for method in data.methods if method.plan.is_private]
    if not private:
        return None
    figure = _figure(7.2, 1.3 + 0.32 * len(private))
    axes: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    shapes = ("o", "s", "^", "D", "v", "P")
    most = max(len(method.plan.groups) for method in private)
    for axis, name, label, factor in (
        (axes[0], "sampling_rate", "sampling rate (%)", 100.0),
        (axes[1], "noise_multiplier", "noise multiplier", 1.0),
    ):
        for row, method in enumerate(private):
            values = [factor * getattr(group, name) for group in method.plan.groups]
            axis.plot(values, [row] * len(values), "-", color="#bbbbbb", linewidth=1, zorder=1)
            for place, value in enumerate(values):
                alone = len(values) == 1 < most
                axis.plot(
                    value,
                    row,
                    marker="o" if alone else shapes[place % len(shapes)],
                    color="#1d1c1a" if alone else _group_colour(place),
                    markerfacecolor="white" if alone else _group_colour(place),
                    markersize=6,
                    linestyle="",
                )
        axis.set(xlabel=label, xlim=(0, None))
    axes[0].set_yticks(range(len(private)), [method.label for method in private])
    axes[0].invert_yaxis()
    widest = next(method for method in private if len(method.plan.groups) == most)
    for place, group in enumerate(widest.plan.groups):
        axes[1].plot([], [], shapes[place % len(shapes)], color=_group_colour(place), label=group.name)
    for name in dict.fromkeys(m.plan.groups[0].name for m in private if len(m.plan.groups) == 1 < most):
        axes[1].plot([], [], "o", color="#1d1c1a", markerfacecolor="white", label=name)
    figure.legend(loc="outside upper center", ncols=min(most + 1, 6), frameon=False, fontsize=8)
    return figure


def _participation(method: MethodRuns) -> "Figure":
    groups = method.plan.groups
    columns = min(len(groups), 4)
    rows = -(-len(groups) // columns)
    figure = _figure(2.7 * columns + 0.6, 2.5 * rows + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(groups) :]:
        axis.set_visible(False)
    for place, (axis, group) in enumerate(zip(axes, groups, strict=False)):
        low, high = cohort_range(group)
        colour = _group_colour(place)
        axis.axhspan(low, high, color=colour, alpha=0.13, linewidth=0)
        axis.axhline(group.expected_cohort, color=colour, linestyle="--", linewidth=1.2)
        for run, marker in zip(method.runs, "osD^vPX" * len(method.runs), strict=False):
            axis.plot(
                [record.round_number for record in run.records],
                [record.cohort[place] for record in run.records],
                marker,
                color=colour,
                markersize=3.5,
                label=f"seed {run.seed}",
            )
        axis.set(title=group.name, xlabel="round", ylim=(0, None))
    axes[0].set_ylabel(f"clients in a round, {method.label}")
    if len(method.runs) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 8), frameon=False, fontsize=8)
    return figure


def write_figures(figures: dict[str, "Figure"], folder: Path, *, kind: str) -> list[Path]:
    """Writes each as ``folder/name.kind``; the folder is made, its parent must be there."""
    if kind not in FORMATS:
        raise InputError(f"expected --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {kind!r}")
    check_place(folder / f"convergence.{kind}", folder_may_be_made=True)
    dated = {"pdf": "CreationDate", "svg": "Date"}.get(kind)
    drawn = {}
    with paper_style():
        for name, figure in figures.items():
            content = io.BytesIO()
            # No date in the file: the same numbers give the same bytes.
            figure.savefig(content, format=kind, metadata={dated: None} if dated else None)
            drawn[folder / f"{name}.{kind}"] = content.getvalue()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(folder)!r}: {error.strerror or error}") from None
    for path, picture in drawn.items():
        write_whole(path, picture)
    return list(drawn)
