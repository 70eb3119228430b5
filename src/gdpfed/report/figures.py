"""Figures of a report that compare methods: curves, one small panel for each, final accuracies, clipping.

Place: `ReportData` -> SVG text. A figure that needs room is drawn twice, for a wide page and for a phone; the page
shows one of them.

Guarantees (tests of the same name):
  a_method_looks_like_no_other   ten methods have ten different pairs of dash and marker.
"""

from collections.abc import Sequence

from gdpfed.report import svg as draw
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.findings import accuracy
from gdpfed.report.svg import Frame, Scale

__all__ = ["accuracy_strip", "clipped_strip", "convergence", "legend", "look", "small_multiples"]

# Points that can be pointed at on one curve, and places of a drawn line: more would only cost bytes.
_MAX_POINTS, _MAX_PLACES = 40, 300


def look(place: int) -> tuple[str, str, str]:
    """Colour class, dash and marker of the method in this place."""
    return (
        f"c{place % draw.NUM_COLOURS}",
        draw.DASHES[place % len(draw.DASHES)],
        draw.MARKERS[(place + place // len(draw.MARKERS)) % len(draw.MARKERS)],
    )


def legend(methods: Sequence[MethodRuns], *, kind: str = "") -> str:
    """Names beside their line and marker."""
    items = ""
    for method in methods:
        colour, dash, marker = look(method.index)
        items += f'<li class="{colour}">{draw.key(marker, dash=dash)}<span>{draw.escape(method.label)}</span></li>'
    return f'<ul class="legend {kind}">{items}</ul>'


def _thinned(rounds: Sequence[int], most: int) -> list[int]:
    """At most so many rounds, evenly chosen, always with the first and the last."""
    if len(rounds) <= most:
        return list(rounds)
    step = (len(rounds) - 1) / (most - 1)
    return [rounds[round(place * step)] for place in range(most)]


def _range(methods: Sequence[MethodRuns]) -> tuple[float, float]:
    values = [record.accuracy for method in methods for run in method.counted for record in run.records]
    low, high = min(values), max(values)
    margin = max(1.0, 0.04 * (high - low))
    return max(0.0, low - margin), min(100.0, high + margin)


def _curve(method: MethodRuns, frame: Frame, *, emphasis: bool) -> str:
    colour, dash, marker = look(method.index)
    drawn = _thinned(method.rounds, _MAX_PLACES)
    columns = {number: method.accuracies_at(number) for number in drawn}
    means = [(frame.x(number), frame.y(sum(values) / len(values))) for number, values in columns.items()]
    made = ""
    if len(method.counted) > 1:
        upper = [(frame.x(number), frame.y(max(values))) for number, values in columns.items()]
        lower = [(frame.x(number), frame.y(min(values))) for number, values in columns.items()]
        made += draw.area(upper, lower, kind="band")
    made += draw.line(means, kind="line strong" if emphasis else "line", dash=dash)
    for order, number in enumerate(_thinned(drawn, _MAX_POINTS)):
        values = columns[number]
        mean = sum(values) / len(values)
        span = f", seeds {min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""
        made += draw.point(
            frame.x(number),
            frame.y(mean),
            marker=marker,
            label=f"{method.label}, round {number}: {mean:.2f} %{span}",
            first=order == 0,
        )
    return f'<g class="s {colour}">{made}</g>'


def convergence(data: ReportData, *, wide: bool) -> str:
    """Test accuracy against rounds: the mean over seeds, in the band from the lowest to the highest."""
    width, height = (1040.0, 540.0) if wide else (342.0, 340.0)
    methods = data.methods
    low, high = _range(methods)
    last = max(method.rounds[-1] for method in methods)
    first = min(method.rounds[0] for method in methods)
    right = 7.5 * max(len(method.label) for method in methods) + 118 if wide else 10.0
    frame = Frame(
        x=Scale(low=min(first, last - 1), high=last, start=38, end=width - min(right, 0.4 * width)),
        y=Scale(low=low, high=high, start=height - 44, end=12),
    )
    body = frame.horizontal_grid(draw.ticks(low, high, 6))
    marks = [tick for tick in draw.ticks(first, last, 8 if wide else 5) if tick == int(tick)]
    body += frame.bottom_labels(list(dict.fromkeys([*(tick for tick in marks if tick < last), last])))
    body += draw.text(frame.x.end, height - 8, "round", anchor="end")
    # The most important is drawn last, on top.
    for method in sorted(methods, key=lambda method: method is data.headline):
        body += _curve(method, frame, emphasis=method is data.headline)
    if wide:
        ends = [frame.y(sum(values) / len(values)) for values in (m.accuracies_at(m.rounds[-1]) for m in methods)]
        heights = draw.pushed_apart(ends, gap=19, low=16, high=height - 44)
        for method, end, at in zip(methods, ends, heights, strict=True):
            colour, _, marker = look(method.index)
            x = frame.x(method.rounds[-1])
            elbow = draw.path([(x + 8, end), (frame.x.end + 18, at), (frame.x.end + 24, at)])
            body += (
                f'<g class="name {colour}"><path class="lead" d="{elbow}"/>'
                f'<use href="#m-{marker}" x="{frame.x.end + 34:.1f}" y="{at:.1f}"/>'
                + draw.text(
                    frame.x.end + 46,
                    at + 4.5,
                    method.label,
                    kind="label strong" if method is data.headline else "label",
                )
                + draw.text(width - 2, at + 4.5, f"{method.mean:.1f} %", kind="label number", anchor="end")
                + "</g>"
            )
    title = f"Test accuracy against rounds, {len(methods)} methods"
    return draw.svg(body, width=width, height=height, title=title, kind="wide" if wide else "narrow")


def small_multiples(data: ReportData) -> str:
    """A panel for each method: its seeds, its mean, and the other methods' means behind."""
    width, height = 320.0, 190.0
    low, high = _range(data.methods)
    last = max(method.rounds[-1] for method in data.methods)
    first = min(method.rounds[0] for method in data.methods)
    frame = Frame(
        x=Scale(low=min(first, last - 1), high=last, start=36, end=width - 14),
        y=Scale(low=low, high=high, start=height - 26, end=10),
    )
    means = {}
    for method in data.methods:
        drawn = _thinned(method.rounds, 60)
        columns = [(number, method.accuracies_at(number)) for number in drawn]
        means[method.label] = [(frame.x(number), frame.y(sum(v) / len(v))) for number, v in columns]
    ghosts = {label: draw.line(points, kind="ghost") for label, points in means.items()}
    panels = ""
    for method in data.methods:
        colour, dash, marker = look(method.index)
        body = frame.horizontal_grid(draw.ticks(low, high, 3)) + frame.bottom_labels([first, last])
        body += "".join(ghost for label, ghost in ghosts.items() if label != method.label)
        body += f'<g class="{colour}">'
        for run in method.runs:
            if len(method.runs) > 1:
                kept = _thinned(range(len(run.records)), 60)
                places = [(frame.x(run.records[at].round_number), frame.y(run.records[at].accuracy)) for at in kept]
                body += draw.line(places, kind="seed")
        body += draw.line(means[method.label], kind="line strong", dash=dash)
        seeds = "; ".join(
            f"seed {run.seed}: {run.last.accuracy:.2f} %" + ("" if run.is_finished else " (unfinished)")
            for run in method.runs
        )
        x, y = means[method.label][-1]
        body += draw.point(x, y, marker=marker, label=f"{method.label}: {accuracy(method)} %; {seeds}", first=True)
        body += "</g>"
        chart = draw.svg(body, width=width, height=height, title=f"Accuracy of {method.label} against rounds")
        panels += (
            f'<div class="panel"><h3 class="{colour}">{draw.key(marker)}<span class="t">'
            f"{draw.escape(method.label)}</span><b>{method.mean:.1f}</b></h3>{chart}</div>"
        )
    # As many in a row as leave the last row fullest.
    in_a_row = min((3, 4, 5), key=lambda number: (-len(data.methods) % number, number))
    return f'<div class="panels few" style="--columns:{in_a_row}">{panels}</div>'


def _rows(data: ReportData, values: Sequence[float], *, wide: bool, zero: bool) -> tuple[Frame, float, float]:
    """A frame with a row for each method and room for names at the left."""
    width = 1040.0 if wide else 342.0
    step = 34.0
    height = step * len(data.methods) + 52
    longest = max(len(method.label) for method in data.methods)
    left = min(9.0 * longest + 30, 0.42 * width) if wide else min(7.6 * longest + 26, 0.42 * width)
    low, high = min(values), max(values)
    margin = max(0.08 * (high - low), 1e-9 if zero else 0.4)
    frame = Frame(
        x=Scale(low=0.0 if zero else max(0.0, low - margin), high=high + margin, start=left, end=width - 14),
        y=Scale(low=0, high=len(data.methods), start=8, end=height - 44),
    )
    return frame, width, height


def _names(data: ReportData, frame: Frame) -> str:
    """Method names at the left of their rows."""
    made = ""
    for row, method in enumerate(data.methods):
        colour, _, marker = look(method.index)
        at = frame.y(row + 0.5)
        made += f'<path class="grid" d="M{frame.x.start:.1f} {at:.1f}H{frame.x.end:.1f}"/>'
        made += f'<g class="{colour}"><use href="#m-{marker}" x="9" y="{at:.1f}"/></g>'
        kind = "label ink strong" if method is data.headline else "label ink"
        made += draw.row_label(22, at, method.label, room=frame.x.start - 30, kind=kind)
    return made


def accuracy_strip(data: ReportData, *, wide: bool) -> str:
    """Final accuracies: a mark for each seed, the mean, and one standard deviation to both sides."""
    values = [value for method in data.methods for value in method.accuracies]
    values += [method.mean + side * (method.std or 0.0) for method in data.methods for side in (-1, 1)]
    frame, width, height = _rows(data, values, wide=wide, zero=False)
    body = frame.vertical_grid(draw.ticks(frame.x.low, frame.x.high, 8 if wide else 4)) + _names(data, frame)
    for row, method in enumerate(data.methods):
        colour, _, marker = look(method.index)
        at = frame.y(row + 0.5)
        body += f'<g class="s {colour}">'
        if method.std is not None:
            left, right = frame.x(method.mean - method.std), frame.x(method.mean + method.std)
            body += f'<path class="spread" d="M{left:.1f} {at:.1f}H{right:.1f}"/>'
        for run in method.counted:
            body += f'<path class="whisker" d="M{frame.x(run.last.accuracy):.1f} {at - 8:.1f}v16"/>'
        seeds = ", ".join(f"{run.last.accuracy:.2f} (seed {run.seed})" for run in method.counted)
        label = f"{method.label}: {accuracy(method)} %; {seeds}"
        body += draw.point(frame.x(method.mean), at, marker=marker, label=label, first=True) + "</g>"
    body += draw.text(frame.x.end, height - 4, "test accuracy (%)", anchor="end")
    title = "Final test accuracy of each method"
    return draw.svg(body, width=width, height=height, title=title, kind="wide" if wide else "narrow")


def clipped_strip(data: ReportData, *, wide: bool) -> str:
    """The share of updates that the clip norm shortened, in recorded rounds; empty where none was."""
    shares = [100 * (method.clipped_share or 0.0) for method in data.methods]
    if not any(shares):
        return ""
    frame, width, height = _rows(data, shares, wide=wide, zero=True)
    body = frame.vertical_grid(draw.ticks(0, frame.x.high, 6 if wide else 3)) + _names(data, frame)
    for row, (method, share) in enumerate(zip(data.methods, shares, strict=True)):
        colour, _, marker = look(method.index)
        at = frame.y(row + 0.5)
        told = f"{share:.3f} % of updates clipped" if method.plan.is_private else "nothing is clipped without privacy"
        body += (
            f'<g class="s {colour}"><path class="spread" d="M{frame.x.start:.1f} {at:.1f}H{frame.x(share):.1f}"/>'
            + draw.point(frame.x(share), at, marker=marker, label=f"{method.label}: {told}", first=True)
            + "</g>"
        )
    body += draw.text(frame.x.end, height - 4, "clipped updates (%)", anchor="end")
    title = "Share of clipped updates of each method"
    return draw.svg(body, width=width, height=height, title=title, kind="wide" if wide else "narrow")
