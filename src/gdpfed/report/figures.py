"""Figures of a report that compare methods: curves, one small panel for each, final accuracies, clipping.

Place: `ReportData` -> SVG text. A figure that needs room is drawn twice, for a wide page and for a phone; the page
shows one of them.

Guarantees (tests of the same name):
  a_method_looks_like_no_other   ten methods have ten different pairs of dash and marker.
"""

from collections.abc import Callable, Sequence

from gdpfed.report import svg as draw
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.findings import accuracy
from gdpfed.report.svg import Frame, Scale

__all__ = ["accuracy_strip", "clipped_strip", "convergence", "look", "small_multiples"]

# Points that can be pointed at on one curve, and corners of a drawn line.
_MAX_POINTS, _MAX_CORNERS, _MAX_SMALL = 40, 300, 60


def look(index: int) -> tuple[str, str, str]:
    """Colour class, dash and marker of the method with this index."""
    return (
        f"c{index % draw.NUM_COLOURS}",
        draw.DASHES[index % len(draw.DASHES)],
        draw.MARKERS[(index + index // len(draw.MARKERS)) % len(draw.MARKERS)],
    )


def _frame(methods: Sequence[MethodRuns], corners: tuple[float, float, float, float]) -> Frame:
    """Accuracies of all methods against rounds."""
    values = [record.accuracy for method in methods for run in method.counted for record in run.records]
    low, high = min(values), max(values)
    margin = max(1.0, 0.04 * (high - low))
    return draw.rounds_frame(
        (min(method.rounds[0] for method in methods), max(method.rounds[-1] for method in methods)),
        (max(0.0, low - margin), min(100.0, high + margin)),
        corners=corners,
    )


def _curve(method: MethodRuns, frame: Frame, *, emphasis: bool) -> str:
    colour, dash, marker = look(method.index)
    seeds = {number: method.accuracies_at(number) for number in draw.thinned(method.rounds, _MAX_CORNERS)}
    series = []
    for number, values in seeds.items():
        mean = method.mean_at(number)
        span = f", seeds {min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""
        series.append((frame.x(number), frame.y(mean), f"{method.label}, round {number}: {mean:.2f} %{span}"))
    band = ""
    if len(method.counted) > 1:
        upper, lower = (
            [(frame.x(number), frame.y(end(values))) for number, values in seeds.items()] for end in (max, min)
        )
        band = draw.area(upper, lower, kind="band")
    means = draw.line([(x, y) for x, y, _ in series], kind="line strong" if emphasis else "line", dash=dash)
    return draw.group(f"s {colour}", band, means, draw.points(series, marker=marker, most=_MAX_POINTS))


def convergence(data: ReportData, *, wide: bool) -> str:
    """Test accuracy against rounds: the mean over seeds, in the band from the lowest to the highest."""
    width, height = (1040.0, 540.0) if wide else (342.0, 340.0)
    methods = data.methods
    right = 7.5 * max(len(method.label) for method in methods) + 118 if wide else 10.0
    frame = _frame(methods, (38, 12, width - min(right, 0.4 * width), height - 44))
    body = frame.horizontal_grid(draw.ticks(frame.y.low, frame.y.high, 6))
    first, last = min(method.rounds[0] for method in methods), frame.x.high
    marks = [tick for tick in draw.ticks(first, last, 8 if wide else 5) if tick == int(tick) and tick < last]
    body += frame.bottom_labels([*marks, last])
    body += draw.text(frame.x.end, height - 8, "round", anchor="end")
    # The most important is drawn last, on top.
    for method in sorted(methods, key=lambda method: method is data.headline):
        body += _curve(method, frame, emphasis=method is data.headline)
    if wide:
        body += _names_at_ends(data, frame, width=width)
    title = f"{data.headline.measure.capitalize()} against rounds, {len(methods)} methods"
    return draw.svg(body, width=width, height=height, title=title, wide=wide)


def _names_at_ends(data: ReportData, frame: Frame, *, width: float) -> str:
    """Method names beside the ends of their curves, pushed apart where these are close."""
    ends = [frame.y(method.mean_at(method.rounds[-1])) for method in data.methods]
    heights = draw.pushed_apart(ends, gap=19, low=16, high=frame.y.start)
    names = ""
    for method, end, at in zip(data.methods, ends, heights, strict=True):
        colour, _, marker = look(method.index)
        elbow = [(frame.x(method.rounds[-1]) + 8, end), (frame.x.end + 18, at), (frame.x.end + 24, at)]
        kind = "label strong" if method is data.headline else "label"
        names += draw.group(
            f"name {colour}",
            draw.line(elbow, kind="lead"),
            f'<use href="#m-{marker}" x="{frame.x.end + 34:.1f}" y="{at:.1f}"/>',
            draw.text(frame.x.end + 46, at + 4.5, method.label, kind=kind),
            draw.text(width - 2, at + 4.5, f"{method.mean:.1f} %", kind="label number", anchor="end"),
        )
    return names


def small_multiples(data: ReportData) -> str:
    """A panel for each method: its seeds, its mean, and the other methods' means behind."""
    width, height = 320.0, 190.0
    frame = _frame(data.methods, (36, 10, width - 14, height - 26))
    first = min(method.rounds[0] for method in data.methods)
    grid = frame.horizontal_grid(draw.ticks(frame.y.low, frame.y.high, 3)) + frame.bottom_labels([first, frame.x.high])
    means = {
        method.label: [
            (frame.x(number), frame.y(method.mean_at(number))) for number in draw.thinned(method.rounds, _MAX_SMALL)
        ]
        for method in data.methods
    }
    panels = ""
    for method in data.methods:
        colour, dash, marker = look(method.index)
        ghosts = [draw.line(points, kind="ghost") for label, points in means.items() if label != method.label]
        lines = []
        for run in method.runs if len(method.runs) > 1 else ():
            kept = draw.thinned(run.records, _MAX_SMALL)
            corners = [(frame.x(record.round_number), frame.y(record.accuracy)) for record in kept]
            lines.append(draw.line(corners, kind="seed"))
        lines.append(draw.line(means[method.label], kind="line strong", dash=dash))
        seeds = "; ".join(
            f"seed {run.seed}: {run.last.accuracy:.2f} %" + ("" if run.is_finished else " (unfinished)")
            for run in method.runs
        )
        label = f"{method.label}: {accuracy(method)} %; {seeds}"
        lines.append(draw.point(*means[method.label][-1], marker=marker, label=label, first=True))
        body = grid + "".join(ghosts) + draw.group(colour, *lines)
        chart = draw.svg(
            body,
            width=width,
            height=height,
            title=f"{method.measure.removeprefix('test ').capitalize()} of {method.label} against rounds",
        )
        panels += draw.panel(method.label, f"{method.mean:.1f}", chart, kind=colour, swatch=draw.key(marker))
    # As many in a row as leave the last row fullest.
    in_a_row = min((3, 4, 5), key=lambda number: (-len(data.methods) % number, number))
    return f'<div class="panels few" style="--columns:{in_a_row}">{panels}</div>'


def _strip(
    data: ReportData,
    values: Sequence[float],
    marks: Callable[[MethodRuns, Frame, float], str],
    *,
    title: str,
    unit: str,
    wide: bool,
    least: float | None = None,
) -> str:
    """A row for each method, with its name at the left and ``marks`` of it; the axis starts at ``least``, if given."""
    width = 1040.0 if wide else 342.0
    height = 34.0 * len(data.methods) + 52
    longest = max(len(method.label) for method in data.methods)
    low, high = min(values), max(values)
    margin = max(0.08 * (high - low), 0.4 if least is None else 1e-9)
    frame = Frame(
        x=Scale(
            low=max(0.0, low - margin) if least is None else least,
            high=high + margin,
            start=min(9.0 * longest + 30 if wide else 7.6 * longest + 26, 0.42 * width),
            end=width - 14,
        ),
        y=Scale(low=0, high=len(data.methods), start=8, end=height - 44),
    )
    names = rows = ""
    for row, method in enumerate(data.methods):
        colour, _, marker = look(method.index)
        at = frame.y(row + 0.5)
        names += frame.across(at, kind="grid") + draw.group(colour, f'<use href="#m-{marker}" x="9" y="{at:.1f}"/>')
        kind = "label ink strong" if method is data.headline else "label ink"
        names += draw.row_label(22, at, method.label, room=frame.x.start - 30, kind=kind)
        rows += draw.group(f"s {colour}", marks(method, frame, at))
    wanted = (8 if wide else 4) if least is None else (6 if wide else 3)
    body = frame.vertical_grid(draw.ticks(frame.x.low, frame.x.high, wanted)) + names + rows
    body += draw.text(frame.x.end, height - 4, unit, anchor="end")
    return draw.svg(body, width=width, height=height, title=title, wide=wide)


def accuracy_strip(data: ReportData, *, wide: bool) -> str:
    """Final accuracies: a mark for each seed, the mean, and one standard deviation to both sides."""
    values = [value for method in data.methods for value in method.accuracies]
    values += [method.mean + side * (method.std or 0.0) for method in data.methods for side in (-1, 1)]

    def marks(method: MethodRuns, frame: Frame, at: float) -> str:
        mean, std = method.mean, method.std
        spread = "" if std is None else frame.across(at, kind="spread", start=mean - std, end=mean + std)
        whiskers = "".join(
            f'<path class="whisker" d="M{frame.x(value):.1f} {at - 8:.1f}v16"/>' for value in method.accuracies
        )
        seeds = ", ".join(f"{run.last.accuracy:.2f} (seed {run.seed})" for run in method.counted)
        label = f"{method.label}: {accuracy(method)} %; {seeds}"
        return spread + whiskers + draw.point(frame.x(mean), at, marker=look(method.index)[2], label=label, first=True)

    title = f"Final {data.headline.measure} of each method"
    return _strip(data, values, marks, title=title, unit=f"{data.headline.measure} (%)", wide=wide)


def clipped_strip(data: ReportData, *, wide: bool) -> str:
    """The share of updates that the clip norm shortened, in recorded rounds; empty where none was, or none is known."""
    shares = [100 * (method.clipped_share or 0.0) for method in data.methods]
    if not any(shares):
        return ""

    def marks(method: MethodRuns, frame: Frame, at: float) -> str:
        if method.clipped_share is None:
            return ""
        share = 100 * method.clipped_share
        words = f"{share:.3f} % of updates clipped" if method.plan.is_private else "nothing is clipped without privacy"
        point = draw.point(
            frame.x(share), at, marker=look(method.index)[2], label=f"{method.label}: {words}", first=True
        )
        return frame.across(at, kind="spread", end=share) + point

    title = "Share of clipped updates of each method"
    return _strip(data, shares, marks, title=title, unit="clipped updates (%)", wide=wide, least=0.0)
