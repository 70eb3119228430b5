"""Figures that only the pages have: budgets as bars, methods by signal-to-noise, the cost frontier, what is left.

Place: values -> SVG text, with the report's pieces and its style.

Guarantees (tests of the same name):
  every_client_is_in_a_bar   the bars of budgets count each client once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gdpfed.planning.asks import Frontier
from gdpfed.planning.plan import Plan
from gdpfed.privacy.rounding import promise
from gdpfed.report import svg as draw
from gdpfed.report.figures import look
from gdpfed.report.plan_figures import group_look
from gdpfed.report.svg import Frame, Scale

__all__ = ["Bar", "budget_bars", "frontier_chart", "left_chart", "mini_budgets", "signal_strip"]

# From epsilon, to epsilon, clients; both ends are the same where all of them have the same budget.
Bar = tuple[float, float, int]
_MOST_BARS, _BINS = 40, 40


def budget_bars(epsilons: NDArray[np.float64]) -> list[Bar]:
    """A bar for each budget; where budgets are many, for each of some ranges of equal ratio."""
    values, counts = np.unique(epsilons, return_counts=True)
    if len(values) <= _MOST_BARS:
        return [(float(value), float(value), int(count)) for value, count in zip(values, counts, strict=True)]
    edges = np.geomspace(values[0], values[-1], _BINS + 1)
    # The ends are the budgets themselves, which a power need not be to the last bit.
    edges[0], edges[-1] = values[0], values[-1]
    binned, _ = np.histogram(epsilons, bins=edges)
    return [(float(edges[i]), float(edges[i + 1]), int(binned[i])) for i in range(_BINS) if binned[i]]


def _bar(left: float, right: float, top: float, bottom: float) -> str:
    return f'<path class="fill solid" d="M{left:.1f} {bottom:.1f}V{top:.1f}H{right:.1f}V{bottom:.1f}Z"/>'


def mini_budgets(epsilons: NDArray[np.float64]) -> str:
    """Budgets as a small picture; each bar's colour is its group's, where there is a group for each budget."""
    bars = budget_bars(epsilons)
    width, height = 320.0, 112.0
    low, high = bars[0][0] / 1.5, bars[-1][1] * 1.5
    most = max(count for _, _, count in bars)
    x = Scale(low=low, high=high, start=8, end=width - 8, log=True)
    y = Scale(low=0, high=most * 1.22, start=height - 24, end=4)
    body = f'<path class="axis" d="M8 {height - 24:.1f}H{width - 8:.1f}"/>'
    for index, (start, end, count) in enumerate(bars):
        is_one = start == end
        left, right = (x(start) - 13, x(start) + 13) if is_one else (x(start), x(end))
        colour = group_look(index, len(bars))[0] if len(bars) <= draw.NUM_GROUP_COLOURS and is_one else "alone"
        words = f"{count:,} clients at epsilon {promise(start)}"
        words = words if is_one else f"{words} to {promise(end)}"
        labels = draw.text((left + right) / 2, height - 8, promise(start), anchor="middle") if len(bars) <= 6 else ""
        labels += draw.text((left + right) / 2, y(count) - 5, f"{count:,}", anchor="middle") if len(bars) <= 6 else ""
        bar = _bar(left, right, y(count), y(0))
        body += draw.group(colour, f'<g role="img" aria-label="{draw.escape(words)}">{bar}</g>', labels)
    return draw.svg(body, width=width, height=height, title="How many clients allow which epsilon")


def signal_strip(plans: Sequence[Plan], *, chosen: str, order: Sequence[str], wide: bool) -> str:
    """A bar for each method, the longest first; ``order`` is the catalogue's, for colours."""
    ranked = sorted(plans, key=lambda plan: -plan.signal_to_noise)
    width, step = (1040.0, 34.0) if wide else (342.0, 40.0)
    height = step * len(ranked) + 44
    longest = max(len(plan.method) for plan in ranked)
    frame = Frame(
        x=Scale(
            low=0, high=ranked[0].signal_to_noise * 1.12, start=min(9.0 * longest + 30, 0.4 * width), end=width - 14
        ),
        y=Scale(low=0, high=len(ranked), start=6, end=height - 38),
    )
    body = frame.vertical_grid(draw.ticks(0, frame.x.high, 8 if wide else 4))
    for row, plan in enumerate(ranked):
        at = frame.y(row + 0.5)
        colour, _, marker = look(order.index(plan.method))
        value = f"{plan.signal_to_noise:.2f}"
        label = f"{plan.method}: signal-to-noise {value} of a round"
        kind = "label ink strong" if plan.method == chosen else "label ink"
        body += draw.group(
            colour,
            f'<use href="#m-{marker}" x="9" y="{at:.1f}"/>',
            draw.row_label(22, at, plan.method, room=frame.x.start - 30, kind=kind),
            frame.across(at, kind="spread", start=0, end=plan.signal_to_noise),
            draw.point(frame.x(plan.signal_to_noise), at, marker=marker, label=label, first=row == 0),
            draw.text(frame.x(plan.signal_to_noise) + 10, at + 4.5, value, kind="value"),
        )
    body += draw.text(frame.x.end, height - 2, "signal-to-noise of one round", anchor="end")
    return draw.svg(body, width=width, height=height, title="Signal-to-noise of each method", wide=wide)


def frontier_chart(found: Frontier, *, wide: bool) -> str:
    """Trainings against asks of a client, all at the signal-to-noise of the plan against models."""
    width, height = (1040.0, 340.0) if wide else (342.0, 300.0)
    asks = [point.asks for point in found.points]
    trainings = [point.trainings for point in found.points]
    today = found.against_models.trainings
    frame = Frame(
        x=Scale(low=min(asks) / 1.1, high=max(asks) * 1.1, start=46, end=width - 14, log=True),
        y=Scale(low=0, high=max(*trainings, today) * 1.15, start=height - 44, end=10),
    )
    fine = wide or max(asks) < 12 * min(asks)
    body = frame.horizontal_grid(draw.ticks(0, frame.y.high, 5))
    body += frame.vertical_grid(draw.log_ticks(frame.x.low, frame.x.high, fine=fine))
    body += frame.across(frame.y(today), kind="budget")
    body += draw.text(frame.x.start + 6, frame.y(today) - 6, "trainings of the plan against models", kind="tick")
    series = [
        (
            frame.x(point.asks),
            frame.y(point.trainings),
            f"{point.asks} asks, {point.trainings:.2f} trainings, cost {point.cost:.2f}"
            + (", the cheapest" if point is found.cheapest else ""),
        )
        for point in found.points
    ]
    best = found.cheapest
    ring = f'<circle class="chosen" cx="{frame.x(best.asks):.1f}" cy="{frame.y(best.trainings):.1f}" r="11"/>'
    body += draw.group(
        "release",
        draw.line([(x, y) for x, y, _ in series], kind="line strong"),
        ring,
        draw.points(series, marker="circle", most=60),
    )
    body += draw.text(frame.x.end, height - 4, "asks of a client in the whole run, logarithmic", anchor="end")
    body += draw.text(2, 10, "trainings", kind="tick")
    return draw.svg(body, width=width, height=height, title="Trainings against asks of one client", wide=wide)


def left_chart(shares: NDArray[np.float64], *, wide: bool) -> str:
    """How many clients have which part of their budget left, from nothing to all of it."""
    width, height = (1040.0 if wide else 342.0), 260.0
    counts, edges = np.histogram(np.clip(shares, 0.0, 1.0), bins=20 if wide else 10, range=(0.0, 1.0))
    frame = Frame(
        x=Scale(low=0, high=100, start=56, end=width - 14),
        y=Scale(low=0, high=max(1, int(counts.max())) * 1.12, start=height - 44, end=10),
    )
    body = frame.horizontal_grid([tick for tick in draw.ticks(0, frame.y.high, 4) if tick == int(tick)])
    body += frame.bottom_labels([0, 20, 40, 60, 80, 100])
    bars = ""
    for index, count in enumerate(counts.tolist()):
        if not count:
            continue
        start, end = 100 * edges[index], 100 * edges[index + 1]
        left, right = frame.x(start) + 1, frame.x(end) - 1
        words = f"{count:,} clients have {start:.0f} to {end:.0f} % of their budget left"
        top, first = frame.y(count), not bars
        bars += _bar(left, right, top, frame.y(0))
        bars += draw.point((left + right) / 2, top, marker="circle", label=words, first=first, kind="small")
    body += draw.group("release", bars)
    body += draw.text(frame.x.end, height - 4, "part of the budget that is left (%)", anchor="end")
    body += draw.text(2, 10, "clients", kind="tick")
    return draw.svg(body, width=width, height=height, title="How much of their budgets clients have left", wide=wide)
