"""Pictures, in one style.

Place: the last step. Matplotlib is an extra (`gdpfed[plots]`); without it the tables still print. Every line has a
marker or a dash of its own, so that nothing is told by colour alone.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gdpfed.errors import InputError, MissingExtraError
from gdpfed.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gdpfed.audit.auditor import AuditReport
    from gdpfed.planning.asks import Frontier
    from gdpfed.planning.plan import Plan
    from gdpfed.report.comparison import Curve

__all__ = [
    "COLOURS", "FORMATS", "MARKERS", "blank_figure", "draw_curve", "line_style", "paper_style", "picture_bytes",
    "plot_audit", "plot_curves", "plot_frontier", "plot_methods", "save_figure",
]  # fmt: skip

FORMATS = ("svg", "png", "pdf")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "///", "...", "xxx")
# Where a logarithmic axis has its numbers.
_LEVELS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 1.5, 2, 3, 4, 5, 7))
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "figure.dpi": 150,
    "svg.hashsalt": "gdpfed",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Within it, figures have our style; an error says how to install Matplotlib where it is missing."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingExtraError(package="matplotlib", extra="plots", purpose="drawing a picture") from None
    with matplotlib.rc_context(_STYLE):
        yield


def blank_figure(width: float, height: float) -> "Figure":
    """A figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def line_style(index: int) -> dict[str, str]:
    """Colour and dash of one of several lines."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)]}


def draw_curve(axis: "Axes", rounds: Sequence[int], accuracies: Sequence[Sequence[float]], **style: Any) -> None:
    """Accuracies against rounds, all seeds' for each: their mean, and the span from the lowest to the highest."""
    axis.plot(rounds, [fmean(seeds) for seeds in accuracies], **style)
    if any(len(seeds) > 1 for seeds in accuracies):
        lowest, highest = [min(seeds) for seeds in accuracies], [max(seeds) for seeds in accuracies]
        axis.fill_between(rounds, lowest, highest, color=style["color"], alpha=0.15, linewidth=0)
    axis.set(xlabel="round", ylabel="test accuracy (%)")


def picture_bytes(figure: "Figure", kind: str) -> bytes:
    """A picture as a file has it, without a date: the same numbers give the same bytes."""
    dated = {"pdf": "CreationDate", "svg": "Date"}.get(kind)
    content = io.BytesIO()
    with paper_style():
        figure.savefig(content, format=kind, metadata={dated: None} if dated else None)
    return content.getvalue()


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Writes a figure as its suffix says: .png, .svg or .pdf."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise InputError(f"expected a picture that ends in .png, .svg or .pdf, got {str(path)!r}")
    content = picture_bytes(figure, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    write_whole(path, content)
    return path


def plot_methods(plans: Mapping[str, Sequence["Plan"]]) -> "Figure":
    """Signal-to-noise of the private methods relative to DP-FedAvg, a cluster of bars for each source."""
    with paper_style():
        private = {title: [plan for plan in row if plan.is_private] for title, row in plans.items()}
        names = list(dict.fromkeys(plan.method for row in private.values() for plan in row))
        figure = blank_figure(max(6.4, 1.2 * len(names)), 3.8)
        axis = figure.subplots()
        width = 0.8 / len(private)
        for index, (title, row) in enumerate(private.items()):
            by_name = {plan.method: plan.signal_to_noise for plan in row}
            base = by_name.get("dp-fedavg", 1.0)
            offset = (index - (len(private) - 1) / 2) * width
            bars = axis.bar(
                [names.index(name) + offset for name in by_name],
                [value / base for value in by_name.values()],
                width * 0.92,
                color=COLOURS[index % len(COLOURS)],
                hatch=_HATCHES[index % len(_HATCHES)],
                edgecolor="white",
                linewidth=0.5,
                label=title,
            )
            if len(private) == 1:
                axis.bar_label(bars, fmt="%.2f", fontsize=8)
        axis.axhline(1.0, color="#333333", linewidth=0.8)
        axis.set_xticks(range(len(names)), names)
        relative = all(any(plan.method == "dp-fedavg" for plan in row) for row in private.values())
        axis.set_ylabel("signal-to-noise, relative to dp-fedavg" if relative else "signal-to-noise")
        axis.grid(visible=False, axis="x")
        axis.legend(frameon=False, ncols=len(private), loc="upper left")
        return figure


def plot_frontier(found: "Frontier", *, title: str) -> "Figure":
    """Asks against trainings of a client, for promises that hold against the server; the cheapest marked."""
    with paper_style():
        figure = blank_figure(6.4, 4.2)
        axis = figure.subplots()
        today, cheapest = found.against_models, found.cheapest
        asks, trainings = zip(*((point.asks, point.trainings) for point in found.points), strict=True)
        hidden: dict[str, Any] = {"marker": MARKERS[0], "markersize": 5, **line_style(0)}
        axis.plot(asks, trainings, label="holds against the server", **hidden)
        plain: dict[str, Any] = line_style(1)
        axis.axhline(today.trainings, label="against models only", **plain)
        best: dict[str, Any] = {"marker": "*", "markersize": 15, "linestyle": "none", "color": COLOURS[2]}
        label = f"cheapest: {cheapest.asks} asks, {cheapest.trainings:.3g} trainings"
        axis.plot([cheapest.asks], [cheapest.trainings], label=label, **best)
        axis.set(xscale="log", yscale="log", xlabel="asks of a client", ylabel="trainings of a client, on average")
        # Of many points every second has a label: neighbours would touch.
        labelled = asks if len(asks) < 8 else asks[::2]
        axis.set_xticks(labelled, [str(number) for number in labelled])
        low, high = min(today.trainings, *trainings), max(*trainings, today.trainings)
        steps = [level for level in _LEVELS if low / 1.3 <= level <= high * 1.3]
        axis.set_yticks(steps, [f"{level:g}" for level in steps])
        axis.minorticks_off()
        axis.set_ylim(low / 1.3, high * 1.3)
        heading = f"{title}, {today.method}: signal-to-noise of a round {today.signal_to_noise:.4g} everywhere"
        axis.set_title(heading, loc="left", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
        return figure


def plot_curves(drawn: Sequence["Curve"]) -> "Figure":
    """A panel for each task, a curve for each method."""
    with paper_style():
        tasks = list(dict.fromkeys(curve.title for curve in drawn))
        figure = blank_figure(5.2 * len(tasks), 3.8)
        for axis, title in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
            by_method: dict[str, list[Curve]] = {}
            for curve in drawn:
                if curve.title == title and curve.rounds:
                    name = f"{curve.method}, {curve.weights}" if curve.weights else curve.method
                    name += ", against the server" if curve.against == "server" else ""
                    by_method.setdefault(name, []).append(curve)
            for index, (method, same) in enumerate(by_method.items()):
                length = min(len(curve.rounds) for curve in same)
                columns = list(zip(*(curve.accuracies[:length] for curve in same), strict=True))
                label = f"{method} ({fmean(columns[-1]):.1f})"
                draw_curve(axis, same[0].rounds[:length], columns, label=label, **line_style(index))
            axis.set(title=title, ylim=_shown([curve for same in by_method.values() for curve in same]))
            axis.legend(frameon=False, fontsize=8, loc="lower right")
        figure.text(0.995, 0.005, "simulation: not a private release", ha="right", fontsize=6, color="#777777")
        return figure


def _shown(curves: Sequence["Curve"]) -> tuple[float, float]:
    """Accuracies that are worth looking at: where curves end, and 25 points below."""
    ends = [curve.accuracies[-1] for curve in curves] or [100.0]
    most = max(value for curve in curves for value in curve.accuracies) if curves else 100.0
    return max(0.0, 5 * math.floor((min(ends) - 25) / 5)), min(100.0, 5 * math.ceil((most + 2) / 5))


def plot_audit(report: "AuditReport") -> "Figure":
    """For each group what is claimed against two adversaries, and what an audit shows at least."""
    with paper_style():
        rows = [row for row in report.rows if row.mechanism == report.rows[0].mechanism and row.view != "others"]
        groups = list(dict.fromkeys(row.group for row in rows))
        figure = blank_figure(max(6.4, 2.4 * len(groups)), 4.4)
        axis = figure.subplots()
        # Where a bound of zero is drawn: the scale has no zero.
        floor = 0.05
        is_rotation = report.sampling == "rotation"
        knows = "who was asked" if is_rotation else "who took part"
        names = {"release": "who sees the released sums", "server": f"the server, which knows {knows}"}
        for index, view in enumerate(names):
            seen = [row for row in rows if row.view == view]
            spots = [groups.index(row.group) + (index - 0.5) * 0.36 for row in seen]
            lowest = [max(row.finding.epsilon_lower, floor) for row in seen]
            claims = [row.finding.claim for row in seen]
            axis.vlines(spots, lowest, claims, color=COLOURS[index], linewidth=7, alpha=0.25)
            style: dict[str, Any] = {"color": COLOURS[index], "linestyle": "none", "markersize": 8}
            axis.plot(spots, claims, marker="_", markeredgewidth=3, label=f"claim: {names[view]}", **style)
            if view == "server" and not is_rotation:
                typical = [row.finding.curve_claim for row in seen]
                axis.plot(spots, typical, marker="x", label="claim, at the participations that coins give", **style)
            by_curve = [max(row.finding.curve_lower, floor) for row in seen]
            axis.plot(spots, lowest, marker="^", label="audit: at least, any mechanism", **style)
            axis.plot(spots, by_curve, marker="D", fillstyle="none", label="audit: at least, by the curve", **style)
            # A lower bound is rounded down, a claim up.
            bounds = [math.floor(100 * row.finding.epsilon_lower) for row in seen]
            hundredths = [*bounds, *(math.ceil(100 * claim) for claim in claims)]
            for spot, height, value in zip(spots * 2, lowest + claims, hundredths, strict=True):
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
                text, at = f"{value / 100:.2f}", (spot, height)
                axis.annotate(text, at, xytext=(9, -3), textcoords="offset points", fontsize=8, bbox=box)
            if view == "release":
                left, right = ([groups.index(row.group) + side for row in seen] for side in (-0.4, 0.4))
                label = "the same number, held against both"
                axis.hlines(claims, left, right, color="#333333", linewidth=0.8, linestyle="--", label=label)
        axis.set(yscale="log", ylim=(floor * 0.8, None), ylabel="epsilon")
        axis.set_xticks(range(len(groups)), groups)
        title = f"{report.method}: the truth lies between what an audit shows and what is claimed"
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(visible=False, axis="x")
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)
        return figure
