"""Pictures, in one style.

Place: the last step. Matplotlib is an extra (`gdpfed[plots]`); without it the tables still print. Every line has a
marker or a dash of its own, so that nothing is told by colour alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpfed.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gdpfed.audit.auditor import AuditReport
    from gdpfed.planning.plan import Plan
    from gdpfed.report.comparison import Curve

__all__ = ["COLOURS", "DASHES", "paper_style", "plot_audit", "plot_curves", "plot_methods", "save_figure"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "///", "...", "xxx")
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


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Writes a figure as its suffix says: .png, .svg or .pdf."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"expected a picture that ends in .png, .svg or .pdf, got {str(path)!r}")
    dated = {".pdf": "CreationDate", ".svg": "Date"}.get(path.suffix.lower())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No date in the file: the same numbers give the same bytes.
        figure.savefig(path, metadata={dated: None} if dated else None)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    return path


def plot_methods(plans: Mapping[str, Sequence["Plan"]]) -> "Figure":
    """Signal-to-noise of the private methods relative to DP-FedAvg, a cluster of bars for each source."""
    with paper_style():
        from matplotlib.figure import Figure

        shown = {title: [plan for plan in row if plan.is_private] for title, row in plans.items()}
        names = list(dict.fromkeys(plan.method for row in shown.values() for plan in row))
        figure = Figure(figsize=(max(6.4, 1.2 * len(names)), 3.8), layout="constrained")
        axis = figure.subplots()
        width = 0.8 / len(shown)
        for place, (title, row) in enumerate(shown.items()):
            by_name = {plan.method: plan.signal_to_noise for plan in row}
            base = by_name.get("dp-fedavg", 1.0)
            offset = (place - (len(shown) - 1) / 2) * width
            bars = axis.bar(
                [names.index(name) + offset for name in by_name],
                [value / base for value in by_name.values()],
                width * 0.92,
                color=COLOURS[place % len(COLOURS)],
                hatch=_HATCHES[place % len(_HATCHES)],
                edgecolor="white",
                linewidth=0.5,
                label=title,
            )
            if len(shown) == 1:
                axis.bar_label(bars, fmt="%.2f", fontsize=8)
        axis.axhline(1.0, color="#333333", linewidth=0.8)
        axis.set_xticks(range(len(names)), names)
        relative = all(any(plan.method == "dp-fedavg" for plan in row) for row in shown.values())
        axis.set_ylabel("signal-to-noise, relative to dp-fedavg" if relative else "signal-to-noise")
        axis.grid(visible=False, axis="x")
        axis.legend(frameon=False, ncols=len(shown), loc="upper left")
        return figure


def plot_curves(drawn: Sequence["Curve"]) -> "Figure":
    """Test accuracy against rounds: the mean over seeds, and the span between the lowest and the highest."""
    with paper_style():
        from matplotlib.figure import Figure

        tasks = list(dict.fromkeys(curve.title for curve in drawn))
        figure = Figure(figsize=(5.2 * len(tasks), 3.8), layout="constrained")
        for axis, title in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
            by_method: dict[str, list[Curve]] = {}
            for curve in drawn:
                if curve.title == title and curve.rounds:
                    name = f"{curve.method}, {curve.weights}" if curve.weights else curve.method
                    by_method.setdefault(name, []).append(curve)
            for place, (method, same) in enumerate(by_method.items()):
                length = min(len(curve.rounds) for curve in same)
                columns = list(zip(*(curve.accuracies[:length] for curve in same), strict=True))
                means = [sum(column) / len(column) for column in columns]
                rounds = same[0].rounds[:length]
                colour = COLOURS[place % len(COLOURS)]
                label = f"{method} ({means[-1]:.1f})"
                axis.plot(rounds, means, DASHES[place % len(DASHES)], color=colour, label=label)
                if len(same) > 1:
                    lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
                    axis.fill_between(rounds, lowest, highest, color=colour, alpha=0.15, linewidth=0)
            axis.set(title=title, xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
            axis.legend(frameon=False, fontsize=8, loc="lower right")
        figure.text(0.995, 0.005, "simulation: not a private release", ha="right", fontsize=6, color="#777777")
        return figure


def plot_audit(report: "AuditReport") -> "Figure":
    """For each group what is claimed against two adversaries, and what an audit shows at least."""
    with paper_style():
        from matplotlib.figure import Figure

        rows = [row for row in report.rows if row.mechanism == report.rows[0].mechanism and row.view != "others"]
        groups = list(dict.fromkeys(row.group for row in rows))
        figure = Figure(figsize=(max(6.4, 2.4 * len(groups)), 4.4), layout="constrained")
        axis = figure.subplots()
        # Where a bound of zero is drawn: the scale has no zero.
        floor = 0.05
        names = {"release": "who sees the released sums", "server": "the server, which knows who took part"}
        for place, view in enumerate(names):
            shown = [row for row in rows if row.view == view]
            spots = [groups.index(row.group) + (place - 0.5) * 0.36 for row in shown]
            lowest = [max(row.finding.epsilon_lower, floor) for row in shown]
            claims = [row.finding.claim for row in shown]
            axis.vlines(spots, lowest, claims, color=COLOURS[place], linewidth=7, alpha=0.25)
            style: dict[str, Any] = {"color": COLOURS[place], "linestyle": "none", "markersize": 8}
            axis.plot(spots, claims, marker="_", markeredgewidth=3, label=f"claim: {names[view]}", **style)
            if view == "server":
                typical = [row.finding.curve_claim for row in shown]
                axis.plot(spots, typical, marker="x", label="claim, at the participations that coins give", **style)
            by_curve = [max(row.finding.curve_lower, floor) for row in shown]
            axis.plot(spots, lowest, marker="^", label="audit: at least, any mechanism", **style)
            axis.plot(spots, by_curve, marker="D", fillstyle="none", label="audit: at least, by the curve", **style)
            # A lower bound is rounded down, a claim up.
            texts = [
                (spot, height, f"{rounded(100 * value) / 100:.2f}")
                for values, heights, rounded in (
                    ([row.finding.epsilon_lower for row in shown], lowest, math.floor),
                    (claims, claims, math.ceil),
                )
                for spot, height, value in zip(spots, heights, values, strict=True)
            ]
            for spot, height, text in texts:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
                axis.annotate(text, (spot, height), xytext=(9, -3), textcoords="offset points", fontsize=8, bbox=box)
            if view == "release":
                middles = [groups.index(row.group) for row in shown]
                left, right = [middle - 0.4 for middle in middles], [middle + 0.4 for middle in middles]
                label = "the same number, held against both"
                axis.hlines(claims, left, right, color="#333333", linewidth=0.8, linestyle="--", label=label)
        axis.set_yscale("log")
        axis.set_ylim(floor * 0.8, None)
        axis.set_xticks(range(len(groups)), groups)
        axis.set_ylabel("epsilon")
        axis.set_title(
            f"{report.method}: the truth lies between what an audit shows and what is claimed", loc="left", fontsize=10
        )
        axis.grid(visible=False, axis="x")
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)
        return figure
