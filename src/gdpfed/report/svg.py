"""Small pieces of SVG: scales, axes, lines, points that can be pointed at.

Place: below the figures of a report. No dependency: a figure is text, its colours are CSS variables of the page, so
that one figure serves a light and a dark page. Every point carries its value as an SVG title: a pointer, a keyboard
and a screen reader find it, with or without scripts.

Guarantees (tests of the same name):
  text_in_figures_is_escaped     nothing that comes from a file can become markup.
  ticks_are_round_numbers        inside the range, evenly spaced, one to eight of them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

__all__ = [
    "DASHES", "MARKERS", "NUM_COLOURS", "NUM_GROUP_COLOURS", "Frame", "Scale", "area", "escape", "group", "key",
    "line", "log_ticks", "panel", "path", "point", "points", "pushed_apart", "rounds_frame", "row_label", "svg", "text",
    "thinned", "tick_label", "ticks",
]  # fmt: skip

_T = TypeVar("_T")

# A method's index chooses its colour, dash and marker; a group's its shade and marker. No two of ten look the same
# without colours.
NUM_COLOURS, NUM_GROUP_COLOURS = 10, 6
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "5 2 1 2 1 2", "", "4 4", "", "1 2 6 2")
# The shapes are in `assets/markers.svg`, with a bar for promises.
MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus", "cross", "ring", "star", "box")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to pixels, linear or logarithmic; a span of zero becomes one around its value."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value is drawn."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, 1e-300))
        if high <= low:
            low, high = low - 0.5, low + 0.5
        return self.start + (at - low) / (high - low) * (self.end - self.start)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The drawing area and its two scales."""

    x: Scale
    y: Scale

    def across(self, y: float, *, kind: str, start: float | None = None, end: float | None = None) -> str:
        """A horizontal line at this height in pixels: from edge to edge, or from one value to another."""
        left = self.x.start if start is None else self.x(start)
        right = self.x.end if end is None else self.x(end)
        return f'<path class="{kind}" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'

    def horizontal_grid(self, values: Iterable[float]) -> str:
        """Lines at these heights, with their values at the left."""
        return "".join(
            self.across(self.y(value), kind="grid")
            + text(self.x.start - 8, self.y(value) + 4, tick_label(value), anchor="end")
            for value in values
        )

    def vertical_grid(self, values: Iterable[float]) -> str:
        """Lines at these x, with their values below."""
        bottom, top = max(self.y.start, self.y.end), min(self.y.start, self.y.end)
        return "".join(
            f'<path class="grid" d="M{self.x(value):.1f} {top:.1f}V{bottom:.1f}"/>' + self.bottom_labels([value])
            for value in values
        )

    def bottom_labels(self, values: Iterable[float]) -> str:
        """Values below the area, without lines."""
        bottom = max(self.y.start, self.y.end)
        return "".join(text(self.x(value), bottom + 18, tick_label(value), anchor="middle") for value in values)


def rounds_frame(
    rounds: tuple[int, int], values: tuple[float, float], *, corners: tuple[float, float, float, float]
) -> Frame:
    """Values against rounds, within left, top, right and bottom."""
    left, top, right, bottom = corners
    return Frame(
        x=Scale(low=min(rounds[0], rounds[1] - 1), high=rounds[1], start=left, end=right),
        y=Scale(low=values[0], high=values[1], start=bottom, end=top),
    )


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, wanted)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)] or [low]


def log_ticks(low: float, high: float, *, fine: bool = False) -> list[float]:
    """Powers of ten, and where there is room twice and five times them; never none."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5),) if fine else ((1,), (1, 2, 5)):
        values = [factor * 10.0**power for power in powers for factor in factors]
        if inside := [value for value in values if low <= value <= high]:
            return inside
    return [low]


def tick_label(value: float) -> str:
    """Short, without an exponent where it is readable without."""
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.0e}"
    return f"{value:,.10f}".rstrip("0").rstrip(".") if abs(value) < 1e4 else f"{value:,.0f}"


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "tick") -> str:
    """A line of text; ``kind`` is a class of the page's style."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def row_label(x: float, y: float, words: str, *, room: float, kind: str) -> str:
    """The name of a row; one that is too long for its room has what is in brackets on a second line."""
    if 7.2 * len(words) <= room:
        return text(x, y + 4.5, words, kind=kind)
    name, _, details = words.partition(" (")
    return text(x, y - 2, _cut(name, room / 7.2), kind=kind) + (
        text(x, y + 12, _cut(details.removesuffix(")"), room / 6.1)) if details else ""
    )


def _cut(words: str, most: float) -> str:
    return words if len(words) <= most else words[: int(most) - 1] + "…"


def path(points: Sequence[tuple[float, float]]) -> str:
    """The ``d`` of a line through these points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def line(points: Sequence[tuple[float, float]], *, kind: str, dash: str = "") -> str:
    """A line through these points."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="{kind}" d="{path(points)}"{dashed}/>'


def area(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], *, kind: str) -> str:
    """Between two lines over the same places."""
    return f'<path class="{kind}" d="{path([*upper, *reversed(lower)])}Z"/>'


def point(x: float, y: float, *, marker: str, label: str, first: bool = False, kind: str = "") -> str:
    """A marker with a value. The first of a series is reached by Tab, the others from there by the arrow keys."""
    return (
        f'<g class="{f"p {kind}".strip()}" transform="translate({x:.1f} {y:.1f})" tabindex="{0 if first else -1}" '
        f'role="img"><title>{escape(label)}</title><circle class="hit" r="9"/><use href="#m-{marker}"/></g>'
    )


def points(series: Sequence[tuple[float, float, str]], *, marker: str, most: int, kind: str = "") -> str:
    """A series, thinned: x, y and label of each point."""
    placed = enumerate(thinned(series, most))
    return "".join(point(x, y, marker=marker, label=label, first=n == 0, kind=kind) for n, (x, y, label) in placed)


def thinned(values: Sequence[_T], most: int) -> list[_T]:
    """At most so many, evenly chosen, always with the first and the last: more would only cost bytes."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(number * step)] for number in range(most)]


def group(kind: str, *parts: str) -> str:
    """Parts that share a class."""
    return f'<g class="{kind}">{"".join(parts)}</g>'


def key(marker: str, *, dash: str | None = None) -> str:
    """A swatch for a legend; decoration, the name stands beside it."""
    width = 18 if dash is None else 34
    stroke = "" if dash is None else line([(1, 8), (33, 8)], kind="line", dash=dash)
    return (
        f'<svg class="key" viewBox="0 0 {width} 16" width="{width}" height="16" aria-hidden="true">'
        f'{stroke}<use href="#m-{marker}" x="{width / 2:g}" y="8"/></svg>'
    )


def panel(title: str, value: str, chart: str, *, kind: str = "", swatch: str = "") -> str:
    """A small figure with its own heading, and a value at the heading's end."""
    named = f' class="{kind}"' if kind else ""
    return (
        f'<div class="panel"><h3{named}>{swatch}<span class="t">{escape(title)}</span><b>{value}</b></h3>{chart}</div>'
    )


def svg(body: str, *, width: float, height: float, title: str, wide: bool | None = None) -> str:
    """A figure with its name for whoever does not see it; one that is drawn twice says for which page it is."""
    kind = "chart" if wide is None else "chart wide" if wide else "chart narrow"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" style="--w:{width:g}px" role="group" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )


def pushed_apart(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Heights near the wanted ones, at least ``gap`` apart, within the range where it is long enough."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    floor = -math.inf
    for index in order:
        floor = placed[index] = max(wanted[index], floor + gap, low)
    ceiling = max(high, low + gap * (len(wanted) - 1))
    for index in reversed(order):
        ceiling = placed[index] = min(placed[index], ceiling)
        ceiling -= gap
    return placed
