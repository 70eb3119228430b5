"""Tables that only the pages have: methods side by side, the cost frontier.

Place: plans -> columns and rows of text, as the report's tables. Epsilons are rounded up.
"""

from collections.abc import Callable, Sequence

from gdpfed.planning.asks import Frontier
from gdpfed.planning.plan import Group, Plan
from gdpfed.privacy.rounding import rounded_up
from gdpfed.report.tables import Table

__all__ = ["compared_table", "frontier_table"]


def _by_group(plan: Plan, cell: Callable[[Group], str]) -> str:
    return " · ".join(cell(group) for group in plan.groups)


_COMPARED: dict[str, Callable[[Plan], str]] = {
    "method": lambda plan: plan.method,
    "signal-to-noise": lambda plan: f"{plan.signal_to_noise:.2f}",
    "noise at equal step": lambda plan: f"{plan.noise_at_equal_step:.4f}",
    "unused budget, mean": lambda plan: f"{plan.mean_waste:.3g}",
    "rates (%)": lambda plan: _by_group(plan, lambda group: f"{100 * group.sampling_rate:.2f}"),
    "noise multipliers": lambda plan: _by_group(plan, lambda group: f"{group.noise_multiplier:.3f}"),
    "cost ε, models": lambda plan: _by_group(plan, lambda group: rounded_up(group.epsilon_release, 3)),
    "server ε, 99 in 100": lambda plan: _by_group(
        plan, lambda group: rounded_up(plan.server_view(group).epsilon_p99, 1)
    ),
    "server ε, at most": lambda plan: _by_group(plan, lambda group: rounded_up(group.epsilon_server, 1)),
}


def compared_table(plans: Sequence[Plan]) -> Table:
    """A row for each method."""
    return list(_COMPARED), [[cell(plan) for cell in _COMPARED.values()] for plan in plans]


def frontier_table(found: Frontier, *, ask_cost: float) -> Table:
    """The plan against models, and a row for each number of asks."""

    def row(against: str, asks: str, cost: float, plan: Plan) -> list[str]:
        coins = "" if asks == "-" else _by_group(plan, lambda group: f"{100 * group.sampling_rate:.1f}")
        epsilons = _by_group(plan, lambda group: rounded_up(group.epsilon_server, 1))
        return [against, asks, f"{plan.trainings:.2f}", f"{cost:.2f}", coins, f"{plan.signal_to_noise:.2f}", epsilons]

    columns = ["promise against", "asks", "trainings", "cost", "coins (%)", "signal-to-noise", "server ε"]
    today = found.against_models
    # Against models whoever is asked trains.
    rows = [row("models", "-", today.trainings * (1 + ask_cost), today)]
    for point in found.points:
        name = "server, cheapest" if point is found.cheapest else "server"
        rows.append(row(name, str(point.asks), point.cost, point.plan))
    return columns, rows
