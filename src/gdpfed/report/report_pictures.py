"""The figures of a report as files for a paper: SVG, PNG or PDF.

Place: `ReportData` -> Matplotlib figures, in the style of `pictures`. Colours, dashes and markers are those of the
page; every figure carries the stamp.

Guarantees (tests of the same name):
  every_picture_is_stamped   as the page is.
  pictures_are_whole         all are drawn before one is written, and each is written whole or not at all.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpfed.errors import InputError
from gdpfed.files import check_writable, write_whole
from gdpfed.planning.plan import Group
from gdpfed.report.colours import LIGHT
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.figures import look
from gdpfed.report.findings import accuracy, cohort_range, planned_cohort
from gdpfed.report.pictures import FORMATS, MARKERS, blank_figure, draw_curve, paper_style, picture_bytes
from gdpfed.report.plan_figures import group_look, group_looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["report_figures", "write_figures"]

_INK = "#1d1c1a"
# The page's markers, as Matplotlib names them; rings and boxes are hollow.
_MARKERS = {
    "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v", "plus": "P", "cross": "X", "ring": "o",
    "star": "*", "box": "s",
}  # fmt: skip


def _look(method: MethodRuns) -> dict[str, Any]:
    name, dash, marker = look(method.index)
    return {
        "color": LIGHT[name],
        "marker": _MARKERS[marker],
        "markerfacecolor": "white" if marker in ("ring", "box") else LIGHT[name],
        "linestyle": (0, tuple(float(part) / 1.6 for part in dash.split())) if dash else "-",
    }


def _group_look(name: str, marker: str) -> dict[str, Any]:
    colour = LIGHT.get(name, _INK)
    return {"color": colour, "marker": _MARKERS[marker], "markerfacecolor": "white" if marker == "ring" else colour}


def report_figures(data: ReportData) -> dict[str, "Figure"]:
    """The figures by name: convergence, accuracy, mechanism, participation."""
    with paper_style():
        figures = {"convergence": _convergence(data), "accuracy": _accuracy(data)}
        if data.private:
            figures["mechanism"] = _mechanism(data.private)
        # Of a deployment nobody knows it.
        if data.is_simulation:
            figures["participation"] = _participation(data.headline)
        for figure in figures.values():
            figure.supxlabel(data.stamp, fontsize=6.5, color="#666666", x=0.995, ha="right")
        return figures


def _convergence(data: ReportData) -> "Figure":
    figure = blank_figure(6.8, 4.2)
    axis = figure.subplots()
    for method in data.methods:
        draw_curve(
            axis,
            method.rounds,
            [method.accuracies_at(number) for number in method.rounds],
            **_look(method),
            markersize=4.5,
            markevery=max(1, len(method.rounds) // 12),
            linewidth=2.2 if method is data.headline else 1.3,
            label=f"{_named(method)} ({method.mean:.1f})",
        )
    axis.set(title=data.title, ylabel=f"{data.headline.measure} (%)")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _named(method: MethodRuns) -> str:
    return method.label if method.is_finished else f"{method.label}, unfinished"


def _name_rows(axis: "Axes", names: Sequence[str]) -> None:
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()


def _accuracy(data: ReportData) -> "Figure":
    figure = blank_figure(6.8, 0.9 + 0.36 * len(data.methods))
    axis = figure.subplots()
    for row, method in enumerate(data.methods):
        colour = _look(method)["color"]
        axis.barh(row, method.mean, xerr=method.std, color=colour, alpha=0.75, height=0.62, capsize=3)
        axis.plot(method.accuracies, [row] * len(method.accuracies), "|", color=_INK, markersize=9)
        end = (method.mean + (method.std or 0.0), row)
        axis.annotate(accuracy(method), end, xytext=(8, 0), textcoords="offset points", va="center", fontsize=8)
    _name_rows(axis, [_named(method) for method in data.methods])
    axis.grid(visible=False, axis="y")
    axis.set(
        xlabel=f"{data.headline.measure} (%), mean ± std over seeds",
        xlim=(0, max(*(m.mean for m in data.methods), 1.0) * 1.22),
    )
    return figure


def _mechanism(methods: Sequence[MethodRuns]) -> "Figure":
    figure = blank_figure(7.2, 1.3 + 0.32 * len(methods))
    axes: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    rate = "trains in a round (%)" if any(method.plan.is_rotation for method in methods) else "sampling rate (%)"
    measures: tuple[tuple[Axes, str, Callable[[Group], float]], ...] = (
        (axes[0], rate, lambda group: 100 * group.asked * group.sampling_rate),
        (axes[1], "noise multiplier", lambda group: group.noise_multiplier),
    )
    for axis, label, measure in measures:
        for row, method in enumerate(methods):
            values = [measure(group) for group in method.plan.groups]
            axis.plot(values, [row] * len(values), "-", color="#bbbbbb", linewidth=1, zorder=1)
            for index, value in enumerate(values):
                axis.plot(value, row, markersize=6, linestyle="", **_group_look(*group_look(index, len(values))))
        axis.set(xlabel=label, xlim=(0, None))
    _name_rows(axes[0], [method.label for method in methods])
    looks = group_looks(methods)
    for colour, marker, name in looks:
        axes[1].plot([], [], label=name, linestyle="", **_group_look(colour, marker))
    figure.legend(loc="outside upper center", ncols=min(len(looks), 6), frameon=False, fontsize=8)
    return figure


def _participation(method: MethodRuns) -> "Figure":
    groups = method.plan.groups
    columns = min(len(groups), 4)
    rows = -(-len(groups) // columns)
    figure = blank_figure(2.7 * columns + 0.6, 2.5 * rows + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(groups) :]:
        axis.set_visible(False)
    for index, (axis, group) in enumerate(zip(axes, groups, strict=False)):
        low, high = cohort_range(method.plan, group)
        colour = LIGHT.get(group_look(index, len(groups))[0], _INK)
        axis.axhspan(low, high, color=colour, alpha=0.13, linewidth=0)
        axis.axhline(planned_cohort(method.plan, group), color=colour, linestyle="--", linewidth=1.2)
        for run, marker in zip(method.runs, MARKERS * len(method.runs), strict=False):
            rounds = [record.round_number for record in run.records]
            sizes = [record.cohort[index] for record in run.records]
            axis.plot(rounds, sizes, marker, color=colour, markersize=3.5, label=f"seed {run.seed}")
        axis.set(title=group.name, xlabel="round", ylim=(0, None))
    axes[0].set_ylabel(f"clients {'asked ' if method.plan.is_rotation else ''}in a round, {method.label}")
    if len(method.runs) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 8), frameon=False, fontsize=8)
    return figure


def write_figures(figures: dict[str, "Figure"], folder: Path, *, kind: str) -> list[Path]:
    """Writes each as ``folder/name.kind``; the folder is made, its parent must be there."""
    if kind not in FORMATS:
        raise InputError(f"expected the format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {kind!r}")
    check_writable(folder / f"convergence.{kind}", folder_may_be_missing=True)
    drawn = {folder / f"{name}.{kind}": picture_bytes(figure, kind) for name, figure in figures.items()}
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(folder)!r}: {error.strerror or error}") from None
    for path, picture in drawn.items():
        write_whole(path, picture)
    return list(drawn)
