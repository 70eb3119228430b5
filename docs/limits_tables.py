"""Tables of `limits.md`, and the five findings of `results.md`: what the paper states and what holds, computed anew."""

import dataclasses
import math
from collections.abc import Sequence

from results_tables import markdown_table

from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import allocations
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.sparsity import noise_energy_kept
from gdpfed.privacy.accountant import ACCOUNTANTS, epsilon_of
from gdpfed.privacy.adversaries import chained_epsilon, person_epsilon
from gdpfed.privacy.rounding import rounded_up
from gdpfed.tasks.task import PRESETS, load_task
from gdpfed_reproduce.problem_one import theorem_one_noise_variance

__all__ = [
    "findings_table",
    "fixed_size_table",
    "limit_tables",
    "noise_scales_table",
    "person_in_a_rotation_table",
    "person_table",
    "server_table",
    "side_channels_table",
    "theorem_one_table",
    "topk_table",
]


def _fmnist(method: str, **changes: object) -> Plan:
    task = load_task("fmnist")
    settings = dataclasses.replace(task.settings, method=method, **changes)  # type: ignore[arg-type]
    return make_plan(task.budgets, settings)


def _theorem_one(plan: Plan, group: Group) -> tuple[float, float]:
    """Theorem 1's noise variance for a group, and its true epsilon."""
    variance = theorem_one_noise_variance(
        epsilon=group.epsilon, delta=group.delta, sampling_rate=group.sampling_rate, num_rounds=plan.num_rounds
    )
    claimed = dataclasses.replace(plan.mechanism(group), noise_multiplier=math.sqrt(variance))
    return variance, epsilon_of(claimed, delta=group.delta)


def findings_table() -> str:
    """The five findings about the paper, on its FMNIST configuration."""
    grouped, sampled = _fmnist("gdpfed"), _fmnist("gdpfed+")
    as_paper = _fmnist("gdpfed", accountant="rdp")
    strict, lax = grouped.groups[0], grouped.groups[-1]
    view = sampled.server_view(sampled.groups[0])
    person = _fmnist("gdpfed", clients_per_person=2)
    together = _person(person, (2, *(0 for _ in person.groups[1:])))
    one_budget = _fmnist("dp-fedavg", accountant="rdp")
    rows = [
        (
            "Theorem 1 gives the noise for a budget",
            f"It can be too little: a budget of {lax.epsilon:g} costs {rounded_up(_theorem_one(grouped, lax)[1], 2)}",
        ),
        (
            "A cohort of fixed size has the epsilon of independent coins",
            f"It has not: {strict.epsilon:g} is at least {_fixed_size(as_paper, as_paper.groups[0])}",
        ),
        (
            "The epsilon holds against the server",
            f"The server draws the sample: {strict.epsilon:g} is {rounded_up(view.epsilon_mean, 2)} for the average "
            f"client, {rounded_up(view.epsilon_max, 2)} for one that is always drawn",
        ),
        (
            "For overlapping clients epsilons add up",
            f"Within a group they cost more: {strict.epsilon:g} and {strict.epsilon:g} are {rounded_up(together, 2)}",
        ),
        (
            "Groups and Top-k lower the noise",
            f"At equal step gdpfed adds {as_paper.noise_at_equal_step / one_budget.noise_at_equal_step:.1f} times "
            f"dp-fedavg's noise variance, and Top-k at 0.7 keeps {100 * noise_energy_kept(0.7):.1f} % of it: the "
            "weights hide a smaller step",
        ),
    ]
    return markdown_table(("the paper", "what holds (FMNIST)"), rows)


def theorem_one_table(presets: Sequence[str] = ("fmnist",)) -> str:
    """Theorem 1's noise and its true epsilon, at uniform rates."""
    rows = []
    for name in presets:
        task = load_task(name)
        plan = make_plan(task.budgets, dataclasses.replace(task.settings, method="gdpfed"))
        for group in plan.groups:
            variance, spent = _theorem_one(plan, group)
            verdict = "**too little**" if spent > group.epsilon else ""
            rows.append(
                (
                    task.title,
                    f"{group.epsilon:g}",
                    f"{variance:.3f}",
                    f"{group.noise_multiplier**2:.3f}",
                    f"{rounded_up(spent, 2)} {verdict}".strip(),
                )
            )
    return markdown_table(
        ("data set", "budget", "Theorem 1's sigma^2", "needed (PLD)", "true epsilon of Theorem 1"), rows
    )


def _fixed_size(plan: Plan, group: Group) -> str:
    """The epsilon of a fixed-size cohort is at least the Poisson one at half the noise: rounded down."""
    halved = dataclasses.replace(plan.mechanism(group), noise_multiplier=group.noise_multiplier / 2)
    return f"{math.floor(100 * epsilon_of(halved, delta=group.delta)) / 100:.2f}"


def fixed_size_table() -> str:
    """What a cohort of fixed size costs at least."""
    rows = [
        (accountant, f"{group.epsilon:g}", f"{group.noise_multiplier**2:.3f}", _fixed_size(plan, group))
        for accountant, plan in ((name, _fmnist("gdpfed", accountant=name)) for name in ACCOUNTANTS[::-1])
        for group in plan.groups
    ]
    return markdown_table(("calibrated by", "FMNIST budget", "sigma^2", "true epsilon, fixed size, at least"), rows)


def server_table(presets: Sequence[str] = ("fmnist",)) -> str:
    """Both epsilons of every group."""
    rows = []
    for name in presets:
        task = load_task(name)
        plan = make_plan(task.budgets, dataclasses.replace(task.settings, method="gdpfed+"))
        for group in plan.groups:
            view = plan.server_view(group)
            rows.append(
                (
                    task.title,
                    f"{group.epsilon:g}",
                    rounded_up(group.epsilon_release, 3),
                    f"{rounded_up(view.epsilon_mean, 2)} ({view.mean_participations})",
                    f"{rounded_up(view.epsilon_p99, 2)} ({view.p99_participations})",
                    f"{rounded_up(view.epsilon_max, 2)} ({view.max_participations})",
                )
            )
    head = ("gdpfed+ (PLD)", "budget", "release", "server, mean (participations)", "99th percentile", "most")
    return markdown_table(head, rows)


def _person(plan: Plan, counts: Sequence[int]) -> float:
    """Of a person with so many clients in each group."""
    sums = [
        [(group.sampling_rate, group.noise_multiplier)] * count
        for group, count in zip(plan.groups, counts, strict=True)
    ]
    return person_epsilon(sums=sums, num_rounds=plan.num_rounds, delta=plan.groups[0].delta)


def person_table() -> str:
    """Two clients of one person, in every pair of groups."""
    plan = _fmnist("gdpfed", clients_per_person=2)
    rows = []
    for counts in allocations(plan):
        held = [group for group, count in zip(plan.groups, counts, strict=True) for _ in range(count)]
        spent = _person(plan, counts)
        added = math.fsum(group.epsilon for group in held)
        where = "the same group" if len({group.name for group in held}) == 1 else "two groups"
        rows.append((" and ".join(f"{group.epsilon:g}" for group in held), where, f"{added:g}", rounded_up(spent, 2)))
    return markdown_table(("budgets of the two clients", "in", "the paper's sum", "epsilon at the same delta"), rows)


def _asked_always() -> Plan:
    return _fmnist("gdpfed", against="server", asks=50, trainings=1.0, clients_per_person=2)


def side_channels_table() -> str:
    """A rotation's epsilon where something tells a training from a zero, with a likelihood ratio."""
    plan = _asked_always()
    rows = []
    for group in plan.groups:
        coin, mechanism = group.sampling_rate, plan.mechanism(group)
        told = [ratio * coin / (1 - coin + ratio * coin) for ratio in (1, 1.1, 2, 10)]
        epsilons = [
            epsilon_of(dataclasses.replace(mechanism, sampling_rate=rate), delta=group.delta) for rate in (*told, 1.0)
        ]
        rows.append((f"{group.epsilon:g}", *(rounded_up(epsilon, 2) for epsilon in epsilons)))
    return markdown_table(("promised", "no channel", "r = 1.1", "r = 2", "r = 10", "known coins"), rows)


def person_in_a_rotation_table() -> str:
    """Two clients of one person, in every pair of groups, by taking away one after the other."""
    plan = _asked_always()
    rows = []
    for counts in allocations(plan):
        held = [group for group, count in zip(plan.groups, counts, strict=True) for _ in range(count)]
        mechanisms = [plan.mechanism(group) for group in held]
        spent = chained_epsilon(mechanisms, delta=plan.largest_delta, accountant=plan.accountant)
        rows.append((" and ".join(f"{group.epsilon:g}" for group in held), rounded_up(spent, 2)))
    return markdown_table(("budgets of the two clients", "epsilon of the person"), rows)


def noise_scales_table() -> str:
    """Step and noise of the paper's methods on one scale."""
    plans = [_fmnist(method, accountant="rdp") for method in ("dp-fedavg", "gdpfed", "gdpfed-opc", "gdpfed+")]
    rows = [
        (
            plan.method,
            f"{plan.paper_noise_magnitude:.2f}",
            f"{plan.step_size:.3f}",
            f"{plan.noise_at_equal_step:.2f}",
            f"{plan.signal_to_noise:.1f}",
        )
        for plan in plans
    ]
    return markdown_table(
        ("FMNIST (RDP)", "Lambda, the paper's way", "step", "noise at equal step", "signal-to-noise"), rows
    )


def topk_table() -> str:
    """What Top-k keeps of pure noise."""
    rows = [(f"{fraction:g}", f"{noise_energy_kept(fraction):.3f}") for fraction in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)]
    return markdown_table(("kept coordinates", "kept noise energy"), rows)


def limit_tables() -> dict[str, str]:
    """The two tables of `limits.md` for all presets."""
    text = (
        "# Limits: all data sets\n\nWritten by `docs/generate.py`. What it means: [limits](../../docs/limits.md).\n\n"
        f"## Theorem 1's noise\n\n{theorem_one_table(PRESETS)}\n## Both epsilons\n\n{server_table(PRESETS)}"
    )
    return {"limits": text}
