"""The tables of a report, as text in cells: the page and the Markdown show the same.

Place: `ReportData` -> columns and rows.

Guarantees (tests of the same name):
  tables_say_what_the_plan_says   every cost in a table is the plan's, rounded up.
"""

from gdpfed.results.report_data import Method, ReportData
from gdpfed.results.report_findings import accuracy
from gdpfed.results.rounding import promise, rounded_up

__all__ = ["Table", "group_table", "method_table"]

Table = tuple[list[str], list[list[str]]]

_BETWEEN = " · "


def group_table(method: Method) -> Table:
    """A plan and its costs, group by group."""
    columns = [
        "group",
        "clients",
        "promised ε",
        "spent ε (models)",
        "server ε, mean",
        "server ε, 99 in 100",
        "server ε, at most",
        "rate (%)",
        "cohort",
        "noise multiplier",
        "noise std",
        "kept (%)",
        "weight",
        "waste, mean",
        "waste, most",
    ]
    rows = []
    for cost in method.costs:
        group, view = cost.group, cost.server
        rows.append(
            [
                group.name,
                f"{group.num_clients:,}",
                promise(group.epsilon),
                rounded_up(cost.release),
                rounded_up(view.epsilon_mean, 2),
                rounded_up(view.epsilon_p99, 2),
                rounded_up(view.epsilon_max, 2),
                f"{100 * group.sampling_rate:.3f}",
                f"{group.expected_cohort:.2f}",
                f"{group.noise_multiplier:.4f}",
                f"{group.noise_std:.4f}",
                f"{100 * group.keep_fraction:.3g}",
                f"{group.weight:.2e}",
                f"{group.mean_waste:.3g}",
                f"{group.max_waste:.3g}",
            ]
        )
    return columns, rows


def method_table(data: ReportData) -> Table:
    """Methods with spreads and costs; a second line in a first cell marks what is unfinished."""
    columns = [
        "method",
        "accuracy (%)",
        "seeds",
        "lowest to highest",
        "loss",
        "promised ε",
        "spent ε (models)",
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
                f"{100 * method.clipped_share:.2f}" if method.plan.is_private else "not clipped",
            ]
        )
    return columns, rows
