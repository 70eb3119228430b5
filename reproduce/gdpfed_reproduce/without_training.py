"""The paper's results that need no training: its optimal sampling ratios and its noise.

Place: planning -> results. Each function returns rows with the paper's figure, ours and the difference; nothing is
rounded here.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gdpfed.errors import InputError, suggestion
from gdpfed.planning.groups import Grouping, group_by_distinct
from gdpfed.planning.methods import make_plan
from gdpfed.planning.rates import paper_rates
from gdpfed.privacy.accountant import ACCOUNTANTS, Accountant
from gdpfed.privacy.budgets import Budgets
from gdpfed.report.paper import paper_tables
from gdpfed.tasks.task import PRESETS, Task, load_task
from gdpfed_reproduce.problem_one import ProblemOne, problem_one_rates

__all__ = [
    "NoiseRow",
    "SamplingRow",
    "SweepLine",
    "check_datasets",
    "noise_table",
    "sampling_sweep",
    "sampling_table",
]

_NOISE_METHODS = ("dp-fedavg", "gdpfed", "gdpfed-opc", "gdpfed+")
# The figure varies the strictest budget from a tenth of its default to half as much again as the middle one.
_SWEEP_DATASETS = ("fmnist", "cifar10")


@dataclass(frozen=True, kw_only=True)
class SamplingRow:
    """One data set's sampling ratios in percent, strictest group first.

    ``objective_gap`` is how much larger Problem 1 is at the paper's ratios than at ours, relatively.
    """

    dataset: str
    epsilons: tuple[float, ...]
    participation: float
    paper: tuple[float, ...]
    closed_form: tuple[float, ...]
    numeric: tuple[float, ...]
    objective_gap: float

    @property
    def difference(self) -> tuple[float, ...]:
        """Ours less the paper's, in percentage points."""
        return tuple(ours - theirs for ours, theirs in zip(self.closed_form, self.paper, strict=True))


@dataclass(frozen=True, kw_only=True)
class NoiseRow:
    """Noise of one method on one data set at the paper's printed rates; the paper's own figures where it prints any."""

    dataset: str
    method: str
    accountant: Accountant
    noise_variances: tuple[float, ...]
    magnitude: float
    at_equal_step: float
    signal_to_noise: float
    paper_variances: tuple[float, ...] | None
    paper_magnitude: float | None

    @property
    def magnitude_difference(self) -> float | None:
        """The relative difference of the noise magnitude from the paper's."""
        return None if self.paper_magnitude is None else self.magnitude / self.paper_magnitude - 1

    @property
    def largest_difference(self) -> float | None:
        """The largest relative difference of a squared noise multiplier from the paper's, which is rounded to 0.01."""
        if self.paper_variances is None:
            return None
        return max(
            (ours / theirs - 1 for ours, theirs in zip(self.noise_variances, self.paper_variances, strict=True)),
            key=abs,
        )


@dataclass(frozen=True, kw_only=True)
class SweepLine:
    """Optimal rates of all groups as the strictest group's epsilon varies."""

    dataset: str
    strictest_epsilons: tuple[float, ...]
    rates: tuple[tuple[float, ...], ...]
    fixed_epsilons: tuple[float, ...]


def check_datasets(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names if the paper has them all."""
    for name in names:
        if name not in PRESETS:
            raise InputError(f"expected data sets among {', '.join(PRESETS)}, got {name!r}{suggestion(name, PRESETS)}")
    return tuple(names)


def _groups(budgets: Budgets) -> Grouping:
    return group_by_distinct(budgets, budgets.default_delta)


def _percent(rates: Sequence[float]) -> tuple[float, ...]:
    return tuple(100 * rate for rate in rates)


def sampling_table(datasets: Sequence[str] = PRESETS) -> list[SamplingRow]:
    """The paper's Table I: optimal sampling ratios."""
    rows = []
    for name in check_datasets(datasets):
        task = load_task(name)
        groups, settings = _groups(task.budgets), task.settings
        problem = ProblemOne(
            groups=groups,
            num_rounds=settings.num_rounds,
            learning_rate=settings.learning_rate,
            local_steps=settings.local_steps,
        )
        printed = tuple(paper_tables()["configurations"][name]["optimal_sampling_percent"])
        closed_form = paper_rates(groups, participation=settings.participation)
        # Rounded as printed they miss the cohort by a little, which would weigh more than the difference itself.
        scaled = [rate * settings.participation * len(groups.sizes) / sum(printed) for rate in printed]
        rows.append(
            SamplingRow(
                dataset=task.title,
                epsilons=groups.epsilons,
                participation=100 * settings.participation,
                paper=printed,
                closed_form=_percent(closed_form),
                numeric=_percent(problem_one_rates(problem, participation=settings.participation)),
                objective_gap=problem.objective(scaled) / problem.objective(closed_form) - 1,
            )
        )
    return rows


def sampling_sweep(datasets: Sequence[str] = _SWEEP_DATASETS, *, num_points: int = 60) -> list[SweepLine]:
    """The paper's figure: optimal ratios against the strictest group's epsilon, the other budgets fixed."""
    lines = []
    for name in check_datasets(datasets):
        task = load_task(name)
        base = _groups(task.budgets)
        fixed = base.epsilons[1:]
        strictest = np.linspace(0.1 * base.epsilons[0], fixed[0] * 1.5, num_points)
        # The paper's figure meets where the two strictest budgets are equal: that point is on the grid.
        strictest = np.sort(np.append(strictest, fixed[0]))
        swept = [dataclasses.replace(base.groups[0], epsilon=float(epsilon)) for epsilon in strictest]
        rates = [
            paper_rates(
                dataclasses.replace(base, groups=(first, *base.groups[1:])), participation=task.settings.participation
            )
            for first in swept
        ]
        lines.append(
            SweepLine(
                dataset=task.title,
                strictest_epsilons=tuple(float(epsilon) for epsilon in strictest),
                rates=tuple(zip(*rates, strict=True)),
                fixed_epsilons=fixed,
            )
        )
    return lines


def noise_table(datasets: Sequence[str] = PRESETS) -> list[NoiseRow]:
    """The paper's noise table, for all four data sets and both accountants, at the rates that the paper prints."""
    rows = []
    for name in check_datasets(datasets):
        task = load_task(name)
        for method in _NOISE_METHODS:
            printed = paper_tables()["noise"].get(name, {}).get(method)
            for accountant in ACCOUNTANTS[::-1]:
                rows.append(_noise_row(task, name, method, accountant, printed))
    return rows


def _noise_row(
    task: Task, name: str, method: str, accountant: Accountant, printed: dict[str, object] | None
) -> NoiseRow:
    printed_rates = tuple(rate / 100 for rate in paper_tables()["configurations"][name]["optimal_sampling_percent"])
    settings = dataclasses.replace(
        task.settings,
        method=method,
        accountant=accountant,
        rates=printed_rates if method in ("gdpfed-opc", "gdpfed+") else None,
    )
    plan = make_plan(task.budgets, settings)
    variances = printed["sigma_squared"] if printed else None
    magnitude = printed["noise_magnitude"] if printed else None
    return NoiseRow(
        dataset=task.title,
        method=method,
        accountant=accountant,
        noise_variances=tuple(group.noise_multiplier**2 for group in plan.groups),
        magnitude=plan.paper_noise_magnitude,
        at_equal_step=plan.noise_at_equal_step,
        signal_to_noise=plan.signal_to_noise,
        paper_variances=tuple(variances) if isinstance(variances, list) else None,
        paper_magnitude=float(magnitude) if isinstance(magnitude, float) else None,
    )
