"""Figures of a report that show a plan and what became of it: promises, groups, rates, noise, cohorts, spending.

Place: `ReportData` -> SVG text, beside `figures`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from gdpfed.planning.plan import Group, Plan
from gdpfed.privacy.rounding import promise, rounded_up
from gdpfed.report import svg as draw
from gdpfed.report.contents import GroupCost, MethodRuns, ReportData
from gdpfed.report.findings import cohort_range, planned_cohort
from gdpfed.report.svg import Frame, Scale

__all__ = [
    "budget_stairs", "cohorts", "group_look", "group_looks", "mechanism_panels", "promises",
    "spending_panels",
]  # fmt: skip

_MAX_STEPS, _MAX_POINTS = 240, 60
_SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus")


def group_look(index: int, of: int) -> tuple[str, str]:
    """Colour class and marker of a group among so many; one alone is nobody's first."""
    if of == 1:
        return "alone", "ring"
    return f"g{index % draw.NUM_GROUP_COLOURS}", _SHAPES[index % len(_SHAPES)]


def group_looks(methods: Sequence[MethodRuns]) -> list[tuple[str, str, str]]:
    """Colour class, marker and name of all groups of these methods, each once."""
    ordered = sorted((method.plan.groups for method in methods), key=len, reverse=True)
    looks = [(*group_look(index, len(groups)), group.name) for groups in ordered for index, group in enumerate(groups)]
    return list(dict.fromkeys(looks))


def promises(method: MethodRuns, *, wide: bool) -> str:
    """Each group's promise, and its cost against both adversaries, on a logarithmic axis."""
    costs = [cost for cost in method.costs if cost.group.is_private]
    width, step = (1040.0, 74.0) if wide else (342.0, 92.0)
    height = step * len(costs) + 40
    low = min(min(cost.group.epsilon, cost.release) for cost in costs) / 1.6
    high = max(max(cost.group.epsilon, cost.server.epsilon_max) for cost in costs) * 1.6
    frame = Frame(
        x=Scale(low=low, high=high, start=150 if wide else 8, end=width - 16, log=True),
        y=Scale(low=0, high=len(costs), start=6, end=height - 34),
    )
    body = frame.vertical_grid(draw.log_ticks(low, high, fine=wide and high < 3000 * low))
    body += draw.text(frame.x.end, height - 2, "epsilon, logarithmic", anchor="end")
    for row, cost in enumerate(costs):
        at = frame.y(row + (0.5 if wide else 0.7))
        clients = f"{cost.group.num_clients:,} clients"
        body += draw.text(0, at - (2 if wide else 38), cost.group.name, kind="label ink strong")
        body += draw.text(0, at + 16, clients) if wide else draw.text(width - 16, at - 38, clients, anchor="end")
        # In a rotation the server's mark would lie on the other.
        server = "" if method.plan.is_rotation else _server_marks(cost, frame, at)
        body += frame.across(at, kind="axis") + server + _release_marks(cost, frame, at, method.plan)
    title = f"Promised and spent epsilon of each group of {method.label}, against both adversaries"
    return draw.svg(body, width=width, height=height, title=title, wide=wide)


def _adversary(plan: Plan) -> str:
    return "whoever sees the models, and the server" if plan.is_rotation else "whoever sees the models"


def _server_marks(cost: GroupCost, frame: Frame, at: float) -> str:
    view = cost.server
    parts = [frame.across(at, kind="spread", start=view.epsilon_mean, end=view.epsilon_max)]
    for marker, who, epsilon, count in (
        ("ring", "a client with the mean number of participations", view.epsilon_mean, view.mean_participations),
        ("diamond", "99 in 100 clients", view.epsilon_p99, view.p99_participations),
        ("box", "a client that takes part as often as it can", view.epsilon_max, view.max_participations),
    ):
        label = f"{cost.group.name}, against the server: epsilon {rounded_up(epsilon, 2)} for {who} ({count} rounds)"
        parts.append(draw.point(frame.x(epsilon), at, marker=marker, label=label))
    for epsilon in (view.epsilon_p99, view.epsilon_max):
        parts.append(draw.text(frame.x(epsilon), at - 11, rounded_up(epsilon, 1), anchor="middle", kind="value"))
    return draw.group("server", *parts)


def _release_marks(cost: GroupCost, frame: Frame, at: float, plan: Plan) -> str:
    promised, x = promise(cost.group.epsilon), frame.x(cost.group.epsilon)
    label = (
        f"{cost.group.name}, against {_adversary(plan)}: epsilon {rounded_up(cost.release)} spent, {promised} promised"
    )
    return draw.group("promise", f'<use href="#m-bar" x="{x:.1f}" y="{at:.1f}"/>') + draw.group(
        "release",
        draw.point(frame.x(cost.release), at, marker="circle", label=label, first=True),
        draw.text(x, at - 14, f"≤ {promised}", anchor="middle", kind="value"),
    )


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
    by_shape: dict[tuple[tuple[int, float], ...], list[MethodRuns]] = {}
    for method in data.private:
        ordered = sorted(method.plan.groups, key=lambda group: group.epsilon)
        by_shape.setdefault(tuple((group.num_clients, group.epsilon) for group in ordered), []).append(method)
    if data.task is None:
        return ""
    steps = _stairs(data.task.budgets.epsilons.tolist())
    panels = ""
    for shape, methods in by_shape.items():
        wasted = methods[0].plan.mean_waste
        value = f"{wasted:.2f} unused a client" if wasted else "nothing unused"
        chart = _stair_panel(steps, shape, methods[0].plan.groups)
        panels += draw.panel(", ".join(method.label for method in methods), value, chart)
    return f'<div class="panels stairs">{panels}</div>'


def _stair_panel(
    steps: Sequence[tuple[float, float, float]], shape: Sequence[tuple[int, float]], groups: Sequence[Group]
) -> str:
    width, height = 490.0, 270.0
    total = steps[-1][1]
    top = max(epsilon for _, _, epsilon in steps)
    frame = Frame(
        x=Scale(low=0, high=total, start=36, end=width - 8), y=Scale(low=0, high=top * 1.12, start=height - 40, end=8)
    )
    upper = [point for a, b, e in steps for point in ((frame.x(a), frame.y(e)), (frame.x(b), frame.y(e)))]
    bottom = frame.y(0)
    lower, promised, start = [], "", 0.0
    for index, (clients, epsilon) in enumerate(shape):
        left, right, at = frame.x(start), frame.x(start + clients), frame.y(epsilon)
        middle = (left + right) / 2
        lower += [(left, at), (right, at)]
        colour, marker = group_look(index, len(shape))
        name = next(group.name for group in groups if (group.num_clients, group.epsilon) == (clients, epsilon))
        parts = [
            f'<path class="fill" d="M{left:.1f} {at:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z"/>',
            frame.across(at, kind="line strong", start=start, end=start + clients),
        ]
        label = f"{name}: {clients:,} clients, promised epsilon {promise(epsilon)}"
        parts.append(draw.point(middle, at, marker=marker, label=label, first=True))
        # Words only where there is room; the marker has them all.
        if right - left >= 34:
            below = bottom - at > 26
            height_of_words = at + (20 if below else -12)
            parts.append(draw.text(middle, height_of_words, promise(epsilon), anchor="middle", kind="value"))
        if right - left >= 7 * len(name):
            parts.append(draw.text(middle, bottom + 18, name, anchor="middle"))
        promised += draw.group(colour, *parts)
        start += clients
    body = frame.horizontal_grid(draw.ticks(0, top * 1.12, 4))
    body += draw.area(upper, lower, kind="waste") + promised + draw.line(upper, kind="budget")
    body += draw.text(width - 8, height - 4, f"{int(total):,} clients, strictest first", anchor="end")
    body += draw.text(2, 10, "ε", kind="label")
    return draw.svg(body, width=width, height=height, title="What clients allow and what their groups promise")


def mechanism_panels(data: ReportData) -> str:
    """Sampling rate and noise of each group, a row for each method."""
    has_rotations = any(method.plan.is_rotation for method in data.private)
    measures: tuple[tuple[str, str, Callable[[Plan, Group], float], str], ...] = (
        (
            "Participation (%)" if has_rotations else "Sampling rate (%)",
            "a client trains in a round, asked or not" if has_rotations else "a client takes part in a round",
            lambda _, group: 100 * group.asked * group.sampling_rate,
            " %",
        ),
        ("Noise multiplier", "noise std over the clip norm", lambda _, group: group.noise_multiplier, ""),
        (
            "Noise on the group's mean",
            "noise std of its sum over the sum's cohort",
            lambda plan, group: group.noise_std / _sharing(plan, group),
            "",
        ),
    )
    return "".join(
        f'<div class="panel"><h3>{title}<span>{meaning}</span></h3>{_dots(data.private, title, value, unit)}</div>'
        for title, meaning, value, unit in measures
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
        body += frame.across(at, kind="grid") + frame.across(at, kind="axis", start=min(own), end=max(own))
        body += draw.row_label(0, at, method.label, room=frame.x.start - 8, kind="label ink")
        for index, (group, number) in enumerate(zip(method.plan.groups, own, strict=True)):
            colour, marker = group_look(index, len(own))
            label = f"{method.label}, {group.name}: {title.lower().removesuffix(' (%)')} {number:.4g}{unit}"
            body += draw.point(frame.x(number), at, marker=marker, label=label, kind=colour, first=index == 0)
    return draw.svg(body, width=width, height=height, title=f"{title} of each group and method")


def _panel_frame(rounds: tuple[int, int], top: float) -> Frame:
    return draw.rounds_frame(rounds, (0, top), corners=(38, 8, 310, 152))


def _group_panel(frame: Frame, rounds: tuple[int, int], group: Group, *, marks: str, title: str, value: str) -> str:
    """A small panel of one group, against rounds."""
    body = frame.horizontal_grid(draw.ticks(0, frame.y.high, 4)) + frame.bottom_labels(rounds) + marks
    body += draw.text(frame.x.end, 186, "round", anchor="end")
    return draw.panel(group.name, value, draw.svg(body, width=320, height=190, title=title))


def cohorts(method: MethodRuns) -> str:
    """Realised cohorts of the recorded rounds against the planned ones, a panel for each group."""
    recorded = [record.round_number for run in method.runs for record in run.records]
    rounds = min(recorded), max(recorded)
    panels = ""
    for index, group in enumerate(method.plan.groups):
        colour, marker = group_look(index, len(method.plan.groups))
        low, high = cohort_range(method.plan, group)
        mean = planned_cohort(method.plan, group)
        expected = f"{mean:.1f}"
        sizes = [record.cohort[index] for run in method.runs for record in run.records]
        frame = _panel_frame(rounds, max(*sizes, high) * 1.08)
        lower, planned, upper = (
            [(x, frame.y(size)) for x in (frame.x.start, frame.x.end)] for size in (low, mean, high)
        )
        parts = [draw.area(upper, lower, kind="band"), draw.line(planned, kind="line", dash="6 4")]
        for run in method.runs:
            series = []
            for record in run.records:
                number, size = record.round_number, record.cohort[index]
                who = "clients asked" if method.plan.is_rotation else "clients"
                label = f"{group.name}, round {number}, seed {run.seed}: {size} {who}, {expected} planned"
                series.append((frame.x(number), frame.y(size), label))
            parts.append(draw.points(series, marker=marker, most=_MAX_POINTS, kind="small"))
        panels += _group_panel(
            frame,
            rounds,
            group,
            marks=draw.group(colour, *parts),
            title=f"Clients of {group.name} in each recorded round",
            value=f"planned {expected}, mean {sum(sizes) / len(sizes):.1f}",
        )
    return f'<div class="panels three">{panels}</div>'


def spending_panels(method: MethodRuns) -> str:
    """Release epsilon against rounds, towards the promise, a panel for each group."""
    run = max(method.counted, key=lambda run: len(run.records))
    rounds = (0, run.last.round_number)
    panels = ""
    for index, group in enumerate(method.plan.groups):
        colour, marker = group_look(index, len(method.plan.groups))
        frame = _panel_frame(rounds, group.epsilon * 1.18)
        at = frame.y(group.epsilon)
        promised = frame.across(at, kind="budget")
        promised += draw.text(frame.x.start + 4, at - 6, f"promise {promise(group.epsilon)}", kind="value")
        series = []
        for record in run.records:
            number, spent = record.round_number, record.epsilons[index]
            label = f"{group.name}, after round {number}: epsilon {rounded_up(spent)} spent"
            series.append((frame.x(number), frame.y(spent), label))
        curve = draw.line([(frame.x(0), frame.y(0)), *((x, y) for x, y, _ in series)], kind="line strong")
        points = draw.points(series, marker=marker, most=_MAX_POINTS, kind="small")
        panels += _group_panel(
            frame,
            rounds,
            group,
            marks=promised + draw.group(colour, curve, points),
            title=f"{'Epsilon' if method.plan.is_rotation else 'Release epsilon'} of {group.name} against rounds",
            value=f"spent {rounded_up(run.last.epsilons[index])}",
        )
    return f'<div class="panels three">{panels}</div>'
