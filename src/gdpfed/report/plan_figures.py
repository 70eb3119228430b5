"""Figures of a report that show a plan and what became of it: promises, groups, rates, noise, cohorts, spending.

Place: `ReportData` -> SVG text, beside `report_figures`.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from gdpfed.planning.plan import Group, Plan
from gdpfed.privacy.rounding import promise, rounded_up
from gdpfed.report import svg as draw
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.findings import cohort_range
from gdpfed.report.svg import Frame, Scale

__all__ = [
    "budget_stairs",
    "cohorts",
    "group_legend",
    "group_look",
    "mechanism_panels",
    "promise_legend",
    "promises",
    "spending_panels",
]

_MAX_STEPS, _MAX_POINTS = 240, 60
_SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus")


def group_look(place: int, of: int) -> tuple[str, str]:
    """Colour class and marker of a group among so many; one alone is nobody's first."""
    if of == 1:
        return "alone", "ring"
    return f"g{place % draw.NUM_GROUP_COLOURS}", _SHAPES[place % len(_SHAPES)]


def group_legend(plans: Sequence[Plan]) -> str:
    """Group names of all plans beside their markers, each once."""
    items = []
    for plan in sorted(plans, key=lambda plan: -len(plan.groups)):
        for place, group in enumerate(plan.groups):
            colour, marker = group_look(place, len(plan.groups))
            items.append(f'<li class="{colour}">{draw.key(marker)}<span>{draw.escape(group.name)}</span></li>')
    return f'<ul class="legend">{"".join(dict.fromkeys(items))}</ul>'


def promise_legend() -> str:
    """What the marks of `promises` mean."""
    items = (
        ("promise", "bar", "promised"),
        ("release", "circle", "spent, against whoever sees the models"),
        ("server", "ring", "server, mean number of participations"),
        ("server", "diamond", "server, 99 in 100 clients"),
        ("server", "box", "server, as many participations as the plan allows"),
    )
    listed = "".join(f'<li class="{kind}">{draw.key(marker)}<span>{told}</span></li>' for kind, marker, told in items)
    return f'<ul class="legend">{listed}</ul>'


def promises(method: MethodRuns, *, wide: bool) -> str:
    """Each group's promise, and its cost against both adversaries, on a logarithmic axis."""
    costs = [cost for cost in method.costs if cost.group.is_private]
    width, step = (1040.0, 74.0) if wide else (342.0, 92.0)
    height = step * len(costs) + 40
    reached = [cost.server.epsilon_max for cost in costs]
    low = min(min(cost.group.epsilon, cost.release) for cost in costs) / 1.6
    high = max([*reached, *(cost.group.epsilon for cost in costs)]) * 1.6
    frame = Frame(
        x=Scale(low=low, high=high, start=150 if wide else 8, end=width - 16, log=True),
        y=Scale(low=0, high=len(costs), start=6, end=height - 34),
    )
    body = frame.vertical_grid(draw.log_ticks(low, high, fine=wide and high < 3000 * low))
    body += draw.text(frame.x.end, height - 2, "epsilon, logarithmic", anchor="end")
    for row, cost in enumerate(costs):
        at = frame.y(row + (0.5 if wide else 0.7))
        group, view = cost.group, cost.server
        if wide:
            body += draw.text(0, at - 2, group.name, kind="label ink strong")
            body += draw.text(0, at + 16, f"{group.num_clients:,} clients", kind="tick")
        else:
            body += draw.text(0, at - 38, group.name, kind="label ink strong")
            body += draw.text(width - 16, at - 38, f"{group.num_clients:,} clients", kind="tick", anchor="end")
        left, right = frame.x(view.epsilon_mean), frame.x(view.epsilon_max)
        body += f'<path class="axis" d="M{frame.x.start:.1f} {at:.1f}H{frame.x.end:.1f}"/>'
        body += f'<g class="server"><path class="spread" d="M{left:.1f} {at:.1f}H{right:.1f}"/>'
        for marker, what, epsilon, count in (
            ("ring", "a client with the mean number of participations", view.epsilon_mean, view.mean_participations),
            ("diamond", "99 in 100 clients", view.epsilon_p99, view.p99_participations),
            ("box", "a client that takes part as often as it can", view.epsilon_max, view.max_participations),
        ):
            label = f"{group.name}, against the server: epsilon {rounded_up(epsilon, 2)} for {what} ({count} rounds)"
            body += draw.point(frame.x(epsilon), at, marker=marker, label=label)
        body += draw.text(
            frame.x(view.epsilon_p99), at - 11, rounded_up(view.epsilon_p99, 1), anchor="middle", kind="value"
        )
        body += draw.text(right, at - 11, rounded_up(view.epsilon_max, 1), anchor="middle", kind="value")
        body += "</g>"
        told = f"{group.name}, against whoever sees the models: epsilon {rounded_up(cost.release)} spent"
        body += f'<g class="promise"><use href="#m-bar" x="{frame.x(group.epsilon):.1f}" y="{at:.1f}"/></g>'
        body += (
            '<g class="release">'
            + draw.point(
                frame.x(cost.release),
                at,
                marker="circle",
                label=f"{told}, {promise(group.epsilon)} promised",
                first=True,
            )
            + draw.text(frame.x(group.epsilon), at - 14, f"≤ {promise(group.epsilon)}", anchor="middle", kind="value")
            + "</g>"
        )
    title = f"Promised and spent epsilon of each group of {method.label}, against both adversaries"
    return draw.svg(body, width=width, height=height, title=title, kind="wide" if wide else "narrow")


def _stairs(epsilons: Sequence[float]) -> list[tuple[float, float, float]]:
    """The sorted budgets as steps: from client, to client, epsilon; many become at most some hundreds, each at its
    smallest budget."""
    values = np.sort(np.asarray(epsilons, dtype=float))
    distinct, starts = np.unique(values, return_index=True)
    if len(distinct) > _MAX_STEPS:
        starts = np.unique(np.linspace(0, len(values), _MAX_STEPS, endpoint=False).astype(int))
        distinct = values[starts]
    ends = [*starts[1:].tolist(), len(values)]
    return [(float(a), float(b), float(e)) for a, b, e in zip(starts.tolist(), ends, distinct.tolist(), strict=True)]


def budget_stairs(data: ReportData) -> str:
    """Clients sorted by what they allow; below, what their group promises; between, what is wasted."""
    plans: dict[tuple[tuple[int, float], ...], list[MethodRuns]] = {}
    for method in data.methods:
        if method.plan.is_private:
            ordered = sorted(method.plan.groups, key=lambda group: group.epsilon)
            plans.setdefault(tuple((group.num_clients, group.epsilon) for group in ordered), []).append(method)
    steps = _stairs(data.task.budgets.epsilons.tolist())
    panels = ""
    for shape, methods in plans.items():
        chart = _stair_panel(steps, shape, methods)
        names = ", ".join(method.label for method in methods)
        wasted = methods[0].plan.mean_waste
        told = f"{wasted:.2f} unused a client" if wasted else "nothing unused"
        panels += f'<div class="panel"><h3><span class="t">{draw.escape(names)}</span><b>{told}</b></h3>{chart}</div>'
    return f'<div class="panels stairs">{panels}</div>'


def _stair_panel(
    steps: Sequence[tuple[float, float, float]], shape: Sequence[tuple[int, float]], methods: Sequence[MethodRuns]
) -> str:
    width, height = 490.0, 270.0
    total = steps[-1][1]
    top = max(epsilon for _, _, epsilon in steps)
    frame = Frame(
        x=Scale(low=0, high=total, start=36, end=width - 8), y=Scale(low=0, high=top * 1.12, start=height - 40, end=8)
    )
    body = frame.horizontal_grid(draw.ticks(0, top * 1.12, 4))
    upper = [point for a, b, e in steps for point in ((frame.x(a), frame.y(e)), (frame.x(b), frame.y(e)))]
    lower, groups, start = [], "", 0.0
    for place, (clients, epsilon) in enumerate(shape):
        left, right, at = frame.x(start), frame.x(start + clients), frame.y(epsilon)
        lower += [(left, at), (right, at)]
        colour, marker = group_look(place, len(shape))
        bottom = frame.y(0)
        name = next(g.name for g in methods[0].plan.groups if (g.num_clients, g.epsilon) == (clients, epsilon))
        groups += (
            f'<g class="{colour}"><path class="fill" d="M{left:.1f} {at:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z"/>'
        )
        groups += f'<path class="line strong" d="M{left:.1f} {at:.1f}H{right:.1f}"/>'
        label = f"{name}: {clients:,} clients, promised epsilon {promise(epsilon)}"
        groups += draw.point((left + right) / 2, at, marker=marker, label=label, first=True)
        # Words only where there is room; the marker has them all.
        if right - left >= 34:
            below = bottom - at > 26
            words = promise(epsilon)
            groups += draw.text((left + right) / 2, at + (20 if below else -12), words, anchor="middle", kind="value")
        if right - left >= 7 * len(name):
            groups += draw.text((left + right) / 2, bottom + 18, name, anchor="middle", kind="tick")
        groups += "</g>"
        start += clients
    body += draw.area(upper, lower, kind="waste") + groups + draw.line(upper, kind="budget")
    body += draw.text(width - 8, height - 4, f"{int(total):,} clients, strictest first", anchor="end")
    body += draw.text(2, 10, "ε", kind="label")
    return draw.svg(body, width=width, height=height, title="What clients allow and what their groups promise")


def mechanism_panels(data: ReportData) -> str:
    """Sampling rate and noise of each group, a row for each method."""
    measures: tuple[tuple[str, str, Callable[[Plan, Group], float], str], ...] = (
        ("Sampling rate (%)", "a client takes part in a round", lambda _, group: 100 * group.sampling_rate, " %"),
        ("Noise multiplier", "noise std over the clip norm", lambda _, group: group.noise_multiplier, ""),
        (
            "Noise on the group's mean",
            "noise std of its sum over the sum's cohort",
            lambda plan, group: group.noise_std / _sharing(plan, group),
            "",
        ),
    )
    private = [method for method in data.methods if method.plan.is_private]
    return "".join(
        f'<div class="panel"><h3>{title}<span>{told}</span></h3>{_dots(private, title, value, unit)}</div>'
        for title, told, value, unit in measures
    )


def _sharing(plan: Plan, group: Group) -> float:
    """How many clients, on average, share the noise that this group's sum carries."""
    return plan.expected_cohort if plan.release == "pooled" else group.expected_cohort


def _dots(methods: Sequence[MethodRuns], title: str, value: Callable[[Plan, Group], float], unit: str) -> str:
    width, step = 342.0, 30.0
    height = step * len(methods) + 42
    values = [value(method.plan, group) for method in methods for group in method.plan.groups]
    longest = max(len(method.label) for method in methods)
    # A group that hardly ever takes part would hide all others on a linear axis.
    log = max(values) > 30 * min(values)
    frame = Frame(
        x=Scale(
            low=min(values) / 1.3 if log else 0.0,
            high=max(values) * (1.3 if log else 1.08),
            start=min(7.4 * longest + 12, 0.42 * width),
            end=width - 12,
            log=log,
        ),
        y=Scale(low=0, high=len(methods), start=4, end=height - 38),
    )
    body = frame.vertical_grid(draw.log_ticks(frame.x.low, frame.x.high) if log else draw.ticks(0, frame.x.high, 4))
    body += draw.text(frame.x.end, height - 4, "logarithmic", anchor="end") if log else ""
    for row, method in enumerate(methods):
        at = frame.y(row + 0.5)
        own = [value(method.plan, group) for group in method.plan.groups]
        body += f'<path class="grid" d="M{frame.x.start:.1f} {at:.1f}H{frame.x.end:.1f}"/>'
        body += f'<path class="axis" d="M{frame.x(min(own)):.1f} {at:.1f}H{frame.x(max(own)):.1f}"/>'
        body += draw.row_label(0, at, method.label, room=frame.x.start - 8, kind="label ink")
        for place, (group, number) in enumerate(zip(method.plan.groups, own, strict=True)):
            colour, marker = group_look(place, len(own))
            told = f"{method.label}, {group.name}: {title.lower().removesuffix(' (%)')} {number:.4g}{unit}"
            body += draw.point(frame.x(number), at, marker=marker, label=told, kind=colour, first=place == 0)
    return draw.svg(body, width=width, height=height, title=f"{title} of each group and method")


def cohorts(method: MethodRuns) -> str:
    """Realised cohorts of the recorded rounds against the planned ones, a panel for each group."""
    panels = ""
    for place, group in enumerate(method.plan.groups):
        colour, marker = group_look(place, len(method.plan.groups))
        low, high = cohort_range(group)
        sizes = [record.cohort[place] for run in method.runs for record in run.records]
        first = min(run.records[0].round_number for run in method.runs)
        last = max(run.last.round_number for run in method.runs)
        frame, width, height = _panel(first, last, max(*sizes, high) * 1.08)
        body = frame.horizontal_grid(draw.ticks(0, frame.y.high, 4)) + frame.bottom_labels([first, last])
        ends = (frame.x.start, frame.x.end)
        upper, lower = ([(x, frame.y(size)) for x in ends] for size in (high, low))
        body += f'<g class="{colour}">' + draw.area(upper, lower, kind="band")
        planned = frame.y(group.expected_cohort)
        body += f'<path class="line" stroke-dasharray="6 4" d="M{frame.x.start:.1f} {planned:.1f}H{frame.x.end:.1f}"/>'
        for run in method.runs:
            step = max(1, math.ceil(len(run.records) / _MAX_POINTS))
            for order, record in enumerate(run.records[::step]):
                label = (
                    f"{group.name}, round {record.round_number}, seed {run.seed}: {record.cohort[place]} clients, "
                    f"{group.expected_cohort:.1f} planned"
                )
                at = frame.x(record.round_number), frame.y(record.cohort[place])
                body += draw.point(*at, marker=marker, label=label, first=order == 0, kind="small")
        body += "</g>" + draw.text(frame.x.end, height - 4, "round", anchor="end")
        mean = sum(sizes) / len(sizes)
        chart = draw.svg(body, width=width, height=height, title=f"Clients of {group.name} in each recorded round")
        told = f"planned {group.expected_cohort:.1f}, mean {mean:.1f}"
        panels += (
            f'<div class="panel"><h3><span class="t">{draw.escape(group.name)}</span><b>{told}</b></h3>{chart}</div>'
        )
    return f'<div class="panels three">{panels}</div>'


def _panel(first: int, last: int, top: float) -> tuple[Frame, float, float]:
    width, height = 320.0, 190.0
    frame = Frame(
        x=Scale(low=min(first, last - 1), high=last, start=38, end=width - 10),
        y=Scale(low=0, high=top, start=height - 38, end=8),
    )
    return frame, width, height


def spending_panels(method: MethodRuns) -> str:
    """Release epsilon against rounds, towards the promise, a panel for each group."""
    panels = ""
    run = max(method.counted, key=lambda run: len(run.records))
    rounds = [0, *(record.round_number for record in run.records)]
    for place, group in enumerate(method.plan.groups):
        colour, marker = group_look(place, len(method.plan.groups))
        spent = [0.0, *(record.epsilons[place] for record in run.records)]
        frame, width, height = _panel(0, rounds[-1], group.epsilon * 1.18)
        body = frame.horizontal_grid(draw.ticks(0, frame.y.high, 4)) + frame.bottom_labels([0, rounds[-1]])
        at = frame.y(group.epsilon)
        body += f'<path class="budget" d="M{frame.x.start:.1f} {at:.1f}H{frame.x.end:.1f}"/>'
        body += draw.text(frame.x.start + 4, at - 6, f"promise {promise(group.epsilon)}", kind="value")
        points = [(frame.x(number), frame.y(epsilon)) for number, epsilon in zip(rounds, spent, strict=True)]
        body += f'<g class="{colour}">' + draw.line(points, kind="line strong")
        step = max(1, math.ceil(len(points) / _MAX_POINTS))
        # Counted from the end, so that the last is always there.
        kept = sorted(range(len(points) - 1, 0, -step))
        for order, place_of in enumerate(kept):
            label = f"{group.name}, after round {rounds[place_of]}: epsilon {rounded_up(spent[place_of])} spent"
            body += draw.point(*points[place_of], marker=marker, label=label, first=order == 0, kind="small")
        body += "</g>" + draw.text(frame.x.end, height - 4, "round", anchor="end")
        chart = draw.svg(body, width=width, height=height, title=f"Release epsilon of {group.name} against rounds")
        told = f"spent {rounded_up(spent[-1])}"
        panels += (
            f'<div class="panel"><h3><span class="t">{draw.escape(group.name)}</span><b>{told}</b></h3>{chart}</div>'
        )
    return f'<div class="panels three">{panels}</div>'
