"""Plans and tables on the terminal.

Place: the outermost layer. Epsilons are rounded up, never down; every table names the adjacency and the adversary of
what it prints.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.table import Table

from gdpfed.planning.notes import plan_notes
from gdpfed.planning.plan import Group, Guarantee, Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.accountant import ADJACENCY
from gdpfed.privacy.rounding import delta_up, rounded_up

__all__ = [
    "console", "print_comparison", "print_json", "print_plan", "print_table", "rounded_up", "say", "table", "tell",
]  # fmt: skip

_T = TypeVar("_T")

# A plan's table needs this much; on a narrower terminal it is shown in two parts.
_WIDE = 128


def console() -> Console:
    """Standard output; without a terminal as wide as the tables need, so that nothing is cut off."""
    width = None if sys.stdout.isatty() else 160
    return Console(highlight=False, markup=False, width=width)


def print_json(content: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def say(*lines: object) -> None:
    """Lines on standard output, whole also where the terminal is narrower."""
    for line in lines:
        console().print(str(line), soft_wrap=True)


def tell(as_json: bool, content: Any, *lines: object) -> None:
    """What a command did: ``content`` for programs, or ``lines`` for people."""
    if as_json:
        print_json(content)
    else:
        say(*lines)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, folded: Collection[str] = ()) -> Table:
    """A table whose first column is text and whose others are numbers, but for ``folded`` ones: text that may break."""
    drawn = Table(title=title or None, title_justify="left")
    for number, column in enumerate(columns):
        is_folded = column in folded
        justify: Literal["left", "right"] = "left" if number == 0 or is_folded else "right"
        drawn.add_column(column, justify=justify, no_wrap=not is_folded, overflow="fold" if is_folded else "ellipsis")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def print_table(
    title: str, columns: Mapping[str, Callable[[_T], str]], rows: Iterable[_T], *, folded: Collection[str] = ()
) -> None:
    """A `table` on standard output, by what each column says of a row."""
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    console().print(table(title, list(columns), cells, folded=folded))


_MECHANISM: dict[str, Callable[[Group], str]] = {
    "group": lambda group: group.name,
    "clients": lambda group: f"{group.num_clients:,}",
    "budget": lambda group: f"{group.epsilon:g}" if group.is_private else "none",
    "rate %": lambda group: f"{100 * group.sampling_rate:.3f}",
    "cohort": lambda group: f"{group.expected_cohort:.2f}",
    "noise x": lambda group: f"{group.noise_multiplier:.4f}",
    "squared": lambda group: f"{group.noise_multiplier**2:.4f}",
    "keep": lambda group: f"{group.keep_fraction:.4g}",
}


def print_plan(plan: Plan, *, title: str) -> None:
    """A plan: its mechanism, what it costs against whom, and what to know before trusting it."""
    costs: dict[str, Callable[[Group], str]] = {
        "weight": lambda group: f"{group.weight:.2e}",
        "eps release": lambda group: rounded_up(group.epsilon_release),
        "server mean": lambda group: rounded_up(plan.server_view(group).epsilon_mean, 2),
        "p99": lambda group: rounded_up(plan.server_view(group).epsilon_p99, 2),
        "most": lambda group: rounded_up(group.epsilon_server, 2),
        "waste": lambda group: f"{group.mean_waste:.3g}/{group.max_waste:.3g}",
    }
    heading = f"{title}: {plan.method}, {plan.num_rounds} rounds, {plan.num_clients:,} clients, {plan.release} sums"
    if console().width >= _WIDE:
        print_table(heading, _MECHANISM | costs, plan.groups)
    else:
        say(heading)
        print_table("the mechanism", _MECHANISM, plan.groups)
        print_table("what it costs", {"group": _MECHANISM["group"], **costs}, plan.groups)
    say(*_footnotes(plan))


def _footnotes(plan: Plan) -> list[str]:
    lines = []
    if plan.is_private:
        views = [(group.name, plan.server_view(group)) for group in plan.groups]
        participations = "; ".join(
            f"{name}: {view.mean_participations}, {view.p99_participations}, {view.max_participations}"
            for name, view in views
        )
        lines += [
            f"epsilons at delta = {_deltas(plan.groups)}, {ADJACENCY.replace('-', ' ')}, Poisson sampling, "
            f"{plan.accountant} ({plan.accountant_version})",
            "eps release: against whoever sees only the released models",
            "server: epsilon against the server, which knows who took part; for the mean, the 99th percentile and the "
            f"largest number of participations ({participations})",
        ]
        if plan.system_guarantee is not None:
            lines.append(f"system: {_guarantee(plan.system_guarantee)}")
        if plan.person_guarantee is not None:
            lines.append(f"person: {_guarantee(plan.person_guarantee)}; by PLD, one noise draw shared within a sum")
        lines.append(
            f"signal-to-noise {plan.signal_to_noise:.2f} a round; step {plan.step_size:.4f}; noise variance at equal "
            f"step {plan.noise_at_equal_step:.4g} (the paper's Lambda: {plan.paper_noise_magnitude:.4g}); "
            f"budget left unused {plan.mean_waste:.3g} a client"
        )
    else:
        lines.append("no privacy: no clipping, no noise")
    return [*lines, *(f"note: {note}" for note in plan_notes(plan)), f"plan {plan_hash(plan)}"]


def _deltas(groups: Iterable[Group]) -> str:
    """One delta where all groups share it, else each group's."""
    listed = list(groups)
    if len({group.delta for group in listed}) == 1:
        return delta_up(listed[0].delta, 4)
    return ", ".join(dict.fromkeys(f"{delta_up(group.delta, 4)} ({group.name})" for group in listed))


def _guarantee(guarantee: Guarantee) -> str:
    promised = f"({rounded_up(guarantee.epsilon)}, {delta_up(guarantee.delta, 4)})"
    return f"{promised} for {guarantee.unit}, against {guarantee.adversary}"


def print_comparison(title: str, plans: Sequence[Plan]) -> None:
    """Several methods for the same budgets, side by side."""

    def by_group(cell: Callable[[Plan, Group], str]) -> Callable[[Plan], str]:
        return lambda plan: " ".join(cell(plan, group) for group in plan.groups)

    columns: dict[str, Callable[[Plan], str]] = {
        "method": lambda plan: plan.method,
        "signal/noise": lambda plan: f"{plan.signal_to_noise:.2f}",
        "step": lambda plan: f"{plan.step_size:.3f}",
        "noise": lambda plan: f"{plan.noise_at_equal_step:.4f}",
        "Lambda": lambda plan: f"{plan.paper_noise_magnitude:.3f}",
        "rates %": by_group(lambda _, group: f"{100 * group.sampling_rate:.2f}"),
        "noise x": by_group(lambda _, group: f"{group.noise_multiplier:.3f}"),
        "eps release": by_group(lambda _, group: rounded_up(group.epsilon_release, 3)),
        "eps server p99": by_group(lambda plan, group: rounded_up(plan.server_view(group).epsilon_p99, 1)),
    }
    first = plans[0]
    print_table(
        f"{title}: {first.num_rounds} rounds, {first.num_clients:,} clients, {first.accountant}", columns, plans
    )
    say(
        "noise: variance at equal step, comparable across methods; Lambda: as the paper prints it, on two scales",
        f"epsilons at delta = {_deltas(group for plan in plans for group in plan.groups)}, "
        f"{ADJACENCY.replace('-', ' ')}; release: against whoever sees only the models; "
        f"server p99: against the server, for 99 in 100 clients",
    )
