"""The tables of a report, as text in cells: the page and the Markdown show the same.

Place: `ReportData` -> columns and rows.

Guarantees (tests of the same name):
  tables_say_what_the_plan_says   every cost in a table is the plan's, rounded up.
"""

from gdpfed.privacy.rounding import delta_up, promise, rounded_up
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.findings import accuracy

__all__ = ["Table", "cost_table", "method_table", "plan_table"]

Table = tuple[list[str], list[list[str]]]

_BETWEEN = " · "


def cost_table(method: MethodRuns) -> Table:
    """What each group was promised, and what was spent against both adversaries."""
    columns = [
        "group",
        "clients",
        "delta",
        "promised ε",
        "spent ε, against whoever sees the models",
        "server ε, mean participations",
        "server ε, 99 in 100 clients",
        "server ε, at most",
    ]
    rows = []
    for cost in method.costs:
        group, view = cost.group, cost.server
        rows.append(
            [
                group.name,
                f"{group.num_clients:,}",
                delta_up(group.delta),
                promise(group.epsilon),
                rounded_up(cost.release),
                _seen(view.epsilon_mean, view.mean_participations),
                _seen(view.epsilon_p99, view.p99_participations),
                _seen(view.epsilon_max, view.max_participations),
            ]
        )
    return columns, rows


def _seen(epsilon: float, participations: int) -> str:
    return f"{rounded_up(epsilon, 2)} (in {participations})"


def plan_table(method: MethodRuns) -> Table:
    """The mechanism, group by group."""
    columns = [
        "group",
        "clients",
        "promised ε",
        "sampling rate (%)",
        "expected cohort",
        "noise multiplier",
        "noise std of the sum",
        "kept by Top-k (%)",
        "weight",
        "unused budget, mean",
        "unused budget, most",
    ]
    rows = [
        [
            group.name,
            f"{group.num_clients:,}",
            promise(group.epsilon),
            f"{100 * group.sampling_rate:.3f}",
            f"{group.expected_cohort:.2f}",
            f"{group.noise_multiplier:.4f}",
            f"{group.noise_std:.4f}",
            f"{100 * group.keep_fraction:.3g}",
            f"{group.weight:.2e}",
            f"{group.mean_waste:.3g}",
            f"{group.max_waste:.3g}",
        ]
        for group in method.plan.groups
    ]
    return columns, rows


def _clipped(method: MethodRuns) -> str:
    if method.clipped_share is None:
        return "not known"
    return f"{100 * method.clipped_share:.2f}" if method.plan.is_private else "not clipped"


def method_table(data: ReportData) -> Table:
    """Methods with spreads and costs; a second line in a first cell marks what is unfinished."""
    columns = [
        "method",
        "accuracy (%)",
        "seeds",
        "lowest to highest",
        "loss",
        "promised ε",
        "spent ε, models",
        "server ε, 99 in 100",
        "server ε, at most",
        "signal-to-noise",
        "clipped (%)",
    ]
    rows = []
    for method in data.methods:
        costs = method.costs
        name = method.label
        waiting = sum(not run.is_finished for run in method.runs)
        if waiting:
            name += f"\n{waiting} of {len(method.runs)} runs unfinished"
        rows.append(
            [
                name,
                accuracy(method),
                str(len(method.accuracies)),
                f"{min(method.accuracies):.2f} to {max(method.accuracies):.2f}",
                f"{method.loss:.3f}",
                _BETWEEN.join(promise(cost.group.epsilon) for cost in costs),
                _BETWEEN.join(rounded_up(cost.release, 3) for cost in costs) if method.plan.is_private else "infinite",
                _BETWEEN.join(rounded_up(cost.server.epsilon_p99, 1) for cost in costs),
                _BETWEEN.join(rounded_up(cost.server.epsilon_max, 1) for cost in costs),
                f"{method.plan.signal_to_noise:.1f}" if method.plan.is_private else "infinite",
                _clipped(method),
            ]
        )
    return columns, rows
