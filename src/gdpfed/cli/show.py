"""Plans and tables on the terminal.

Place: the outermost layer. Epsilons are rounded up, never down; every table names the adjacency and the adversary of
what it prints.
"""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gdpfed.planning.notes import plan_notes
from gdpfed.planning.plan import Group, Guarantee, Plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed.privacy.rounding import delta_up, rounded_up

__all__ = [
    "console", "doing", "print_comparison", "print_json", "print_plan", "print_table", "rounded_up", "say", "table",
    "tell",
]  # fmt: skip

_T = TypeVar("_T")

# Narrower than this, text that may break is no longer read with ease.
_NARROWEST = 16


def console() -> Console:
    """Standard output; without a terminal and $COLUMNS it is wide, for most tables."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, markup=False, width=width)


def print_json(content: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def say(*lines: object) -> None:
    """Lines on standard output, whole also where the terminal is narrower."""
    for line in lines:
        console().print(str(line), soft_wrap=True)


def doing(what: str) -> None:
    """On a terminal, one line that is overwritten; an empty one clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{what}")
        sys.stderr.flush()


def tell(as_json: bool, content: Any, *lines: object) -> None:
    """What a command did: ``content`` for programs, or ``lines`` for people."""
    if as_json:
        print_json(content)
    else:
        say(*lines)


@dataclass(frozen=True)
class _Sheet:
    """A table where it fits; on a narrower terminal a block for each row: nothing is ever cut."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: Collection[str]

    def fits(self, width: int) -> bool:
        """Whether no column has to be cut; ``folded`` ones may break."""
        cells = [max(map(cell_len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        needed = (
            min(cell, _NARROWEST) if name in self.folded else cell
            for name, cell in zip(self.columns, cells, strict=True)
        )
        return sum(needed) + 3 * len(cells) + 1 <= width

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        if not self.fits(options.max_width):
            yield from self._blocks()
            return
        drawn = Table(title=self.title or None, title_justify="left")
        for number, column in enumerate(self.columns):
            is_folded = column in self.folded
            justify: Literal["left", "right"] = "left" if number == 0 or is_folded else "right"
            drawn.add_column(column, justify=justify, no_wrap=not is_folded, overflow="fold")
        for row in self.rows:
            drawn.add_row(*row)
        yield drawn

    def _blocks(self) -> RenderResult:
        if self.title:
            yield Text(self.title, style="italic")
        for first, *others in self.rows:
            block = Table.grid(padding=(0, 2, 0, 0))
            block.add_column(no_wrap=True)
            block.add_column(overflow="fold")
            for name, cell in zip(self.columns[1:], others, strict=True):
                if cell:
                    block.add_row(f"  {name}", cell)
            yield Text(first or self.columns[0], style="bold", overflow="fold")
            yield block


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, folded: Collection[str] = ()) -> _Sheet:
    """A table whose first column is text and whose others are numbers, but for ``folded`` ones: text that may break."""
    return _Sheet(title, columns, [list(row) for row in rows], folded)


def print_table(
    title: str, columns: Mapping[str, Callable[[_T], str]], rows: Iterable[_T], *, folded: Collection[str] = ()
) -> None:
    """A `table` on standard output, by what each column says of a row."""
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    console().print(table(title, list(columns), cells, folded=folded))


def _in_parts(heading: str, parts: Mapping[str, Mapping[str, Callable[[_T], str]]], rows: Sequence[_T]) -> None:
    """One table where the terminal is wide enough; else one for each part, all with the first column of the first, if
    those fit."""

    def sheet(title: str, columns: Mapping[str, Callable[[_T], str]]) -> _Sheet:
        return table(title, list(columns), [[cell(row) for cell in columns.values()] for row in rows])

    every = {name: cell for columns in parts.values() for name, cell in columns.items()}
    first = dict([next(iter(every.items()))])
    whole, split = sheet(heading, every), [sheet(title, first | dict(columns)) for title, columns in parts.items()]
    width = console().width
    if whole.fits(width) or not all(part.fits(width) for part in split):
        console().print(whole)
    else:
        say(heading)
        console().print(*split, sep="\n")


def print_plan(plan: Plan, *, title: str) -> None:
    """A plan: its mechanism, what it costs against whom, and what to know before trusting it."""
    rotating: dict[str, Callable[[Group], str]] = {
        "coin %": lambda group: f"{100 * group.sampling_rate:.3f}",
        "asked": lambda group: f"{group.asked * group.num_clients:.1f}",
    }
    rates: dict[str, Callable[[Group], str]] = {"rate %": lambda group: f"{100 * group.sampling_rate:.3f}"}
    # Where there is room for it in 80 columns.
    keep: dict[str, Callable[[Group], str]] = {"keep": lambda group: f"{group.keep_fraction:.4g}"}
    mechanism: dict[str, Callable[[Group], str]] = {
        "group": lambda group: group.name,
        "clients": lambda group: f"{group.num_clients:,}",
        "budget": lambda group: f"{group.epsilon:g}" if group.is_private else "none",
        **(rotating if plan.is_rotation else rates),
        "cohort": lambda group: f"{group.expected_cohort:.2f}",
        "noise x": lambda group: f"{group.noise_multiplier:.4f}",
        "squared": lambda group: f"{group.noise_multiplier**2:.4f}",
        **({} if plan.is_rotation else keep),
    }
    one_epsilon: dict[str, Callable[[Group], str]] = {"eps, both": lambda group: rounded_up(group.epsilon_release)}
    two_epsilons: dict[str, Callable[[Group], str]] = {
        "eps release": lambda group: rounded_up(group.epsilon_release),
        "server mean": lambda group: rounded_up(plan.server_view(group).epsilon_mean, 2),
        "p99": lambda group: rounded_up(plan.server_view(group).epsilon_p99, 2),
        "most": lambda group: rounded_up(group.epsilon_server, 2),
    }
    costs: dict[str, Callable[[Group], str]] = {
        **(keep if plan.is_rotation else {}),
        "weight": lambda group: f"{group.weight:.2e}",
        **(one_epsilon if plan.is_rotation else two_epsilons),
        "waste": lambda group: f"{group.mean_waste:.3g}/{group.max_waste:.3g}",
    }
    heading = f"{title}: {plan.method}, {plan.num_rounds} rounds, {plan.num_clients:,} clients, {plan.release} sums"
    _in_parts(heading, {"the mechanism": mechanism, "what it costs": costs}, plan.groups)
    say(*_footnotes(plan))


def _against_both(plan: Plan) -> list[str]:
    """What to know about the one epsilon of a rotation."""
    return [
        f"eps, both: promised against {plan.adversary}",
        "neighbours: one client's updates replaced by zero; not hidden: being enrolled, and when one is asked",
        f"each client is asked {plan.num_releases} times in {plan.num_rounds} rounds (asked: a round), tosses a secret "
        f"coin each time, and trains {plan.trainings:.3g} times on average (cohort: a round)",
        *([] if plan.bands is None else [f"noise is correlated over {plan.bands} rounds: for simulations only"]),
    ]


def _against_each(plan: Plan) -> list[str]:
    """What to know about two epsilons."""
    views = [(group.name, plan.server_view(group)) for group in plan.groups]
    participations = "; ".join(
        f"{name}: {view.mean_participations}, {view.p99_participations}, {view.max_participations}"
        for name, view in views
    )
    return [
        "eps release: against whoever sees only the released models",
        "server: epsilon against the server, which knows who took part; for the mean, the 99th percentile and the "
        f"largest number of participations ({participations})",
    ]


def _footnotes(plan: Plan) -> list[str]:
    lines = []
    if plan.is_private:
        sampling = "a secret coin at each ask" if plan.is_rotation else "Poisson sampling"
        lines += [
            f"epsilons at delta = {_deltas(plan.groups)}, {plan.adjacency.replace('-', ' ')}, {sampling}, "
            f"{plan.accountant} ({plan.accountant_version})",
            *(_against_both(plan) if plan.is_rotation else _against_each(plan)),
        ]
        if plan.system_guarantee is not None:
            lines.append(f"system: {_guarantee(plan.system_guarantee)}")
        if plan.person_guarantee is not None:
            how = "one client after the other" if plan.is_rotation else "by PLD, one noise draw shared within a sum"
            lines.append(f"person: {_guarantee(plan.person_guarantee)}; {how}")
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

    has_rotations = any(plan.is_rotation for plan in plans)
    asking: dict[str, Callable[[Plan], str]] = {
        "asks": lambda plan: "" if plan.asks is None else str(plan.asks),
        "trains": lambda plan: f"{plan.trainings:.2f}",
    }
    figures: dict[str, Callable[[Plan], str]] = {
        "method": lambda plan: plan.method,
        "signal/noise": lambda plan: f"{plan.signal_to_noise:.2f}",
        "step": lambda plan: f"{plan.step_size:.3f}",
        "noise": lambda plan: f"{plan.noise_at_equal_step:.4f}",
        "Lambda": lambda plan: f"{plan.paper_noise_magnitude:.3f}",
        **(asking if has_rotations else {}),
    }
    by_groups: dict[str, Callable[[Plan], str]] = {
        "coins %" if has_rotations else "rates %": by_group(lambda _, group: f"{100 * group.sampling_rate:.2f}"),
        "noise x": by_group(lambda _, group: f"{group.noise_multiplier:.3f}"),
    }
    # Each plan's own: of one that is no rotation the server learns more than others do.
    one_epsilon: dict[str, Callable[[Plan], str]] = {
        "eps, both": by_group(
            lambda plan, group: rounded_up(group.epsilon_release if plan.is_rotation else group.epsilon_server, 3)
        )
    }
    two_epsilons: dict[str, Callable[[Plan], str]] = {
        "eps release": by_group(lambda _, group: rounded_up(group.epsilon_release, 3)),
        "eps server p99": by_group(lambda plan, group: rounded_up(plan.server_view(group).epsilon_p99, 1)),
    }
    first = plans[0]
    _in_parts(
        f"{title}: {first.num_rounds} rounds, {first.num_clients:,} clients, {first.accountant}",
        {"figures": figures, "by group": by_groups | (one_epsilon if has_rotations else two_epsilons)},
        plans,
    )
    rotation = next((plan for plan in plans if plan.is_rotation), first)
    delta = f"epsilons at delta = {_deltas(group for plan in plans for group in plan.groups)}, "
    say(
        "noise: variance at equal step, comparable across methods; Lambda: as the paper prints it, on two scales",
        f"{delta}{rotation.adjacency.replace('-', ' ')}; both: against {rotation.adversary}; not hidden: being "
        "enrolled, and when one is asked"
        if has_rotations
        else f"{delta}{first.adjacency.replace('-', ' ')}; release: against whoever sees only the models; "
        f"server p99: against the server, for 99 in 100 clients",
    )
