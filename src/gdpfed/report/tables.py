"""The tables of a report, as text in cells: the page and the Markdown show the same.

Place: `ReportData` -> columns and rows.

Guarantees (tests of the same name):
  tables_say_what_the_plan_says   every cost in a table is the plan's, rounded up.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from gdpfed.planning.plan import Group
from gdpfed.privacy.rounding import delta_up, promise, rounded_up
from gdpfed.report.contents import GroupCost, MethodRuns, ReportData
from gdpfed.report.findings import accuracy

__all__ = ["Table", "cost_table", "method_table", "plan_table"]

Table = tuple[list[str], list[list[str]]]
_T = TypeVar("_T")


def _table(columns: Mapping[str, Callable[[_T], str]], rows: Iterable[_T]) -> Table:
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def _server(epsilon: float, participations: int) -> str:
    return f"{rounded_up(epsilon, 2)} (in {participations})"


_COSTS: dict[str, Callable[[GroupCost], str]] = {
    "group": lambda cost: cost.group.name,
    "clients": lambda cost: f"{cost.group.num_clients:,}",
    "delta": lambda cost: delta_up(cost.group.delta),
    "promised ε": lambda cost: promise(cost.group.epsilon),
    "spent ε, against whoever sees the models": lambda cost: rounded_up(cost.release),
    "server ε, mean participations": lambda cost: _server(cost.server.epsilon_mean, cost.server.mean_participations),
    "server ε, 99 in 100 clients": lambda cost: _server(cost.server.epsilon_p99, cost.server.p99_participations),
    "server ε, at most": lambda cost: _server(cost.server.epsilon_max, cost.server.max_participations),
}


def cost_table(method: MethodRuns) -> Table:
    """What each group was promised, and what was spent against both adversaries: in a rotation one number."""
    verb = "spent" if method.runs else "cost"
    costs = {name.replace("spent", verb): cell for name, cell in _COSTS.items()}
    in_all: dict[str, Callable[[GroupCost], str]] = {}
    if any(cost.over_all_runs is not None for cost in method.costs):
        in_all = {"ε over all runs": lambda cost: rounded_up(cost.over_all_runs or 0.0)}
    if not method.plan.is_rotation:
        return _table(costs | in_all, method.costs)
    known = [name for name in _COSTS if name.startswith(("group", "clients", "delta", "promised"))]
    of_both: dict[str, Callable[[GroupCost], str]] = {
        f"{verb} ε, against whoever sees the models, and the server": lambda cost: rounded_up(cost.release),
        "asks of a client": lambda cost: str(cost.server.max_participations),
        "trainings, on average": lambda cost: f"{cost.server.max_participations * cost.group.sampling_rate:.3g}",
    }
    return _table({name: _COSTS[name] for name in known} | of_both | in_all, method.costs)


_PLAN: dict[str, Callable[[Group], str]] = {
    "group": lambda group: group.name,
    "clients": lambda group: f"{group.num_clients:,}",
    "promised ε": lambda group: promise(group.epsilon),
    "sampling rate (%)": lambda group: f"{100 * group.sampling_rate:.3f}",
    "expected cohort": lambda group: f"{group.expected_cohort:.2f}",
    "noise multiplier": lambda group: f"{group.noise_multiplier:.4f}",
    "noise std of the sum": lambda group: f"{group.noise_std:.4f}",
    "kept by Top-k (%)": lambda group: f"{100 * group.keep_fraction:.3g}",
    "weight": lambda group: f"{group.weight:.2e}",
    "unused budget, mean": lambda group: f"{group.mean_waste:.3g}",
    "unused budget, most": lambda group: f"{group.max_waste:.3g}",
}


def plan_table(method: MethodRuns) -> Table:
    """The mechanism, group by group."""
    if not method.plan.is_rotation:
        return _table(_PLAN, method.plan.groups)
    coins: dict[str, Callable[[Group], str]] = {
        "secret coin (%)": _PLAN["sampling rate (%)"],
        "asked a round": lambda group: f"{group.asked * group.num_clients:.1f}",
        "trains a round": _PLAN["expected cohort"],
    }
    columns: dict[str, Callable[[Group], str]] = {}
    for name, cell in _PLAN.items():
        columns |= coins if name == "sampling rate (%)" else {} if name == "expected cohort" else {name: cell}
    return _table(columns, method.plan.groups)


def _name(method: MethodRuns) -> str:
    """With a second line that says what is unfinished."""
    waiting = sum(not run.is_finished for run in method.runs)
    return f"{method.label}\n{waiting} of {len(method.runs)} runs unfinished" if waiting else method.label


def _by_group(method: MethodRuns, cell: Callable[[GroupCost], str]) -> str:
    return " · ".join(cell(cost) for cost in method.costs)


def _spent(method: MethodRuns) -> str:
    return _by_group(method, lambda cost: rounded_up(cost.release, 3)) if method.plan.is_private else "infinite"


def _clipped(method: MethodRuns) -> str:
    if method.clipped_share is None:
        return "not recorded" if method.plan.is_rotation else "not known"
    return f"{100 * method.clipped_share:.2f}" if method.plan.is_private else "not clipped"


_METHODS: dict[str, Callable[[MethodRuns], str]] = {
    "method": _name,
    "accuracy (%)": accuracy,
    "seeds": lambda method: str(len(method.accuracies)),
    "lowest to highest": lambda method: f"{min(method.accuracies):.2f} to {max(method.accuracies):.2f}",
    "loss": lambda method: f"{method.loss:.3f}",
    "promised ε": lambda method: _by_group(method, lambda cost: promise(cost.group.epsilon)),
    "spent ε, models": _spent,
    "server ε, 99 in 100": lambda method: _by_group(method, lambda cost: rounded_up(cost.server.epsilon_p99, 1)),
    "server ε, at most": lambda method: _by_group(method, lambda cost: rounded_up(cost.server.epsilon_max, 1)),
    "signal-to-noise": lambda method: f"{method.plan.signal_to_noise:.1f}" if method.plan.is_private else "infinite",
    "clipped (%)": _clipped,
}


def method_table(data: ReportData) -> Table:
    """Methods with spreads and costs."""
    measure = f"{data.headline.measure.removeprefix('test ')} (%)"
    columns = {measure if name == "accuracy (%)" else name: cell for name, cell in _METHODS.items()}
    return _table(columns, data.methods)
