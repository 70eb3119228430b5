"""Every method under comparison, as a function from budgets to a plan.

Place: the planner's top: budgets -> groups -> rates -> noise -> weights -> sparsity -> Plan. A method is a choice at
each arrow; what `PlanSettings` states goes before the method's own choice, and what would contradict the method is
refused.

    fedavg       one group, no clip, no noise: the reference without privacy
    dp-fedavg    one group at the strictest budget
    gdpfed       the paper: a group for each budget, uniform rates
    gdpfed-opc   with the paper's optimal rates
    gdpfed+      and Top-k of each group's noisy sum
    pfa          gdpfed, the strict groups' sum projected on the lax groups'
    idp-fedavg   one noise multiplier, rates that make it fit each budget (Sample)
    idp-scale    one sum and one noise draw, clip norms in proportion to what each budget allows (Scale)
    pooled       one sum and one noise draw, updates scaled by 1 / noise multiplier, rates for the largest
                 signal-to-noise

Guarantees (tests of the same name):
  every_method_keeps_every_budget     under both accountants.
  every_method_verifies               the plan that comes out passes its own verify().
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from gdpfed.errors import InputError, PrivacyError, suggestion
from gdpfed.planning import groups as grouping
from gdpfed.planning import rates as rating
from gdpfed.planning import sparsity, weights
from gdpfed.planning.groups import Grouping
from gdpfed.planning.noise_curves import noise_by_epsilon, noise_by_rate
from gdpfed.planning.people import assignment_digest
from gdpfed.planning.plan import Group, Plan, Release, guaranteed
from gdpfed.planning.settings import AUTO_GROUPS, KeepRule, PlanSettings, RateRule
from gdpfed.planning.weights import Weighting
from gdpfed.privacy.accountant import accountant_version
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.calibrate import noise_multiplier_for

__all__ = ["METHODS", "check_method", "make_plan", "two_means_split"]

Method = Callable[[Budgets, PlanSettings], Plan]


def make_plan(budgets: Budgets, settings: PlanSettings) -> Plan:
    """Plans ``settings.method`` for these budgets: every epsilon computed, every budget kept, or an error that says
    why not."""
    return METHODS[check_method(settings.method)](budgets, settings)


def check_method(name: str) -> str:
    """Returns ``name`` if it is a method, else says which there are."""
    if name not in METHODS:
        raise InputError(f"expected a method among {', '.join(METHODS)}, got {name!r}{suggestion(name, METHODS)}")
    return name


def fedavg(budgets: Budgets, settings: PlanSettings) -> Plan:
    """No privacy at all."""
    _refuse(
        settings, "groups", "rates", "noise_multipliers", "keep", "weights", "release", "linked", "clients_per_person"
    )
    everyone = grouping.group_everyone(budgets, _delta(budgets, settings))
    return Plan(
        method="fedavg",
        groups=(
            Group(
                name="everyone",
                num_clients=len(budgets),
                epsilon=math.inf,
                delta=everyone.deltas[0],
                sampling_rate=settings.participation,
                clip_norm=math.inf,
                noise_multiplier=0.0,
                weight=1 / (settings.participation * len(budgets)),
                epsilon_release=math.inf,
                epsilon_server=math.inf,
            ),
        ),
        grouping="one",
        release="per-group",
        num_rounds=settings.num_rounds,
        clip_norm=math.inf,
        accountant=settings.accountant,
        accountant_version=accountant_version(),
        server_learning_rate=settings.server_learning_rate,
        averaging=settings.averaging,
        max_participations=settings.max_participations,
    )


def dp_fedavg(budgets: Budgets, settings: PlanSettings) -> Plan:
    """Everyone gets the strictest client's budget."""
    _refuse(settings, "groups", "rates", "keep", "weights", "release")
    everyone = grouping.group_everyone(budgets, _delta(budgets, settings))
    return _assembled(budgets, settings, everyone, rates="uniform", weighting="paper", keep="none", release="per-group")


def gdpfed(budgets: Budgets, settings: PlanSettings) -> Plan:
    """The paper's GDPFed."""
    return _separate(budgets, settings, rates="uniform", keep="none")


def gdpfed_opc(budgets: Budgets, settings: PlanSettings) -> Plan:
    """GDPFed with the paper's optimal client sampling ratios."""
    return _separate(budgets, settings, rates="paper", keep="none")


def gdpfed_plus(budgets: Budgets, settings: PlanSettings) -> Plan:
    """The paper's GDPFed+: optimal ratios, and Top-k after the noise."""
    return _separate(budgets, settings, rates="paper", keep="paper")


def pfa(budgets: Budgets, settings: PlanSettings) -> Plan:
    """Projected federated averaging: the groups below the upper cluster of budgets are projected."""
    _refuse(settings, "release")
    plan = _separate(budgets, settings, rates="uniform", keep="none")
    if len(plan.groups) < 2:
        raise InputError("expected at least two groups for pfa, got one: with equal budgets use dp-fedavg")
    first_public = two_means_split(
        [group.epsilon for group in plan.groups], [group.num_clients for group in plan.groups]
    )
    groups = tuple(
        dataclasses.replace(group, projected=place < first_public) for place, group in enumerate(plan.groups)
    )
    return dataclasses.replace(plan, groups=groups)


def idp_fedavg(budgets: Budgets, settings: PlanSettings) -> Plan:
    """Individualised DP by sampling: one noise multiplier, a rate for each group."""
    _refuse(settings, "rates", "noise_multipliers")
    return _separate(budgets, settings, rates="sample", keep="none")


def idp_scale(budgets: Budgets, settings: PlanSettings) -> Plan:
    """Individualised DP by clipping: one noise draw, clip norms in proportion to 1 / noise multiplier."""
    _refuse(settings, "rates", "keep", "weights", "release", "noise_multipliers")
    groups = _groups(budgets, settings, release="pooled")
    noise = _noise(groups, (settings.participation,) * len(groups.sizes), settings)
    common = math.fsum(size * multiplier for size, multiplier in zip(groups.sizes, noise, strict=True)) / len(budgets)
    return _finished(
        settings,
        groups,
        budgets,
        rates=(settings.participation,) * len(groups.sizes),
        noise=noise,
        omega=(1 / (settings.participation * len(budgets)),) * len(groups.sizes),
        keep=(1.0,) * len(groups.sizes),
        release="pooled",
        clip_norms=tuple(settings.clip_norm * common / multiplier for multiplier in noise),
        scales=(1.0,) * len(groups.sizes),
    )


def pooled(budgets: Budgets, settings: PlanSettings) -> Plan:
    """One secure sum for all groups, each update scaled by 1 / noise multiplier."""
    _refuse(settings, "keep", "weights", "release")
    groups = _groups(budgets, settings, release="pooled")
    return _assembled(budgets, settings, groups, rates="snr", weighting="paper", keep="none", release="pooled")


METHODS: dict[str, Method] = {
    "fedavg": fedavg,
    "dp-fedavg": dp_fedavg,
    "gdpfed": gdpfed,
    "gdpfed-opc": gdpfed_opc,
    "gdpfed+": gdpfed_plus,
    "pfa": pfa,
    "idp-fedavg": idp_fedavg,
    "idp-scale": idp_scale,
    "pooled": pooled,
}


def two_means_split(epsilons: list[float], sizes: list[int]) -> int:
    """Where the upper of two clusters of sorted budgets starts: the split with the least variance within (exact in one
    dimension)."""
    values, counts = np.array(epsilons), np.array(sizes, dtype=np.float64)

    def within(part: slice) -> float:
        mean = np.average(values[part], weights=counts[part])
        return float((counts[part] * (values[part] - mean) ** 2).sum())

    return min(range(1, len(values)), key=lambda split: within(slice(0, split)) + within(slice(split, None)))


def _refuse(settings: PlanSettings, *names: str) -> None:
    """Raises if a setting was stated that the method leaves no choice in."""
    for name in names:
        if name in settings.changed():
            raise InputError(f"{settings.method} leaves no choice of {name}: leave {name} out, or take another method")


def _delta(budgets: Budgets, settings: PlanSettings) -> float:
    return settings.delta if settings.delta is not None else budgets.default_delta


def _separate(budgets: Budgets, settings: PlanSettings, *, rates: RateRule, keep: KeepRule) -> Plan:
    """Groups released separately (unless the settings pool them), with the method's own rates and sparsity as
    defaults."""
    release = settings.release or "per-group"
    groups = _groups(budgets, settings, release=release)
    pooled_keep: KeepRule = "none" if release == "pooled" else keep
    return _assembled(budgets, settings, groups, rates=rates, weighting="paper", keep=pooled_keep, release=release)


def _groups(budgets: Budgets, settings: PlanSettings, *, release: Release) -> Grouping:
    rule, delta = settings.groups, _delta(budgets, settings)
    if rule == "auto":
        rule = "distinct" if len(np.unique(budgets.epsilons)) <= AUTO_GROUPS else AUTO_GROUPS
    if rule == "given":
        return grouping.group_given(budgets, delta, min_size=settings.min_group_size)
    if isinstance(rule, tuple):
        return grouping.group_at_edges(budgets, delta, rule, min_size=settings.min_group_size)
    if rule == "distinct":
        return grouping.group_by_distinct(budgets, delta, min_size=settings.min_group_size)
    curve = noise_by_epsilon(
        low=float(budgets.epsilons.min()),
        high=float(budgets.epsilons.max()),
        delta=float(budgets.deltas_or(delta).min()),
        sampling_rate=settings.participation,
        num_rounds=settings.num_rounds,
        accountant=settings.accountant,
    )
    return grouping.choose_groups(
        budgets,
        delta,
        max_groups=int(rule),
        noise_curve=curve,
        value=grouping.pooled_value if release == "pooled" else grouping.separate_value,
        min_size=settings.min_group_size,
    )


def _noise(groups: Grouping, rates: tuple[float, ...], settings: PlanSettings) -> tuple[float, ...]:
    if settings.noise_multipliers is not None:
        _expect_one_each("noise multiplier", settings.noise_multipliers, groups)
        return settings.noise_multipliers
    noise = []
    for name, epsilon, delta, rate in zip(groups.names, groups.epsilons, groups.deltas, rates, strict=True):
        try:
            multiplier = noise_multiplier_for(
                epsilon=epsilon,
                delta=delta,
                sampling_rate=rate,
                num_rounds=settings.num_rounds,
                accountant=settings.accountant,
            )
        except PrivacyError as error:
            raise PrivacyError(f"{name!r} cannot meet its budget: {error}") from None
        noise.append(multiplier)
    return tuple(noise)


def _expect_one_each(what: str, values: tuple[float, ...], groups: Grouping) -> None:
    if len(values) != len(groups.sizes):
        raise InputError(
            f"expected a {what} for each of {len(groups.sizes)} groups, strictest first, got {len(values)}"
        )


def _assembled(
    budgets: Budgets,
    settings: PlanSettings,
    groups: Grouping,
    *,
    rates: RateRule,
    weighting: Weighting,
    keep: KeepRule,
    release: Release,
) -> Plan:
    """Rates, noise, weights, sparsity, in this order; what the settings state goes before the method's choice."""
    weighting = settings.weights or weighting
    if release == "pooled" and settings.weights is not None:
        raise InputError("a pooled sum has one weight: leave weights out")
    rule = settings.rates if settings.rates is not None else rates
    if rule == "sample":
        if settings.noise_multipliers is not None:
            raise InputError("rates 'sample' choose the noise multiplier themselves: leave noise_multipliers out")
        common, chosen_rates = rating.sample_rates(
            groups, participation=settings.participation, num_rounds=settings.num_rounds, accountant=settings.accountant
        )
        noise: tuple[float, ...] = (common,) * len(groups.sizes)
    else:
        chosen_rates = _rates(groups, settings, rule=rule, weighting=weighting, release=release)
        noise = _noise(groups, chosen_rates, settings)
    cohorts = [rate * size for rate, size in zip(chosen_rates, groups.sizes, strict=True)]
    scales = (1.0,) * len(noise)
    if release == "pooled":
        omega = (1 / weights.pooled_signal_to_noise(cohorts, noise),) * len(noise)
        scales = tuple(1 / multiplier for multiplier in noise)
    elif weighting == "paper":
        omega = weights.paper_weights(cohorts)
    else:
        omega = weights.inverse_variance_weights(cohorts, noise)
    return _finished(
        settings,
        groups,
        budgets,
        rates=chosen_rates,
        noise=noise,
        omega=omega,
        keep=_keep(settings, settings.keep if settings.keep is not None else keep, omega, noise, cohorts),
        release=release,
        clip_norms=(settings.clip_norm,) * len(noise),
        scales=scales,
    )


def _rates(
    groups: Grouping, settings: PlanSettings, *, rule: RateRule, weighting: Weighting, release: Release
) -> tuple[float, ...]:
    if isinstance(rule, tuple):
        _expect_one_each("rate", rule, groups)
        return rule
    if rule == "uniform":
        return rating.uniform_rates(groups, participation=settings.participation)
    if rule == "paper":
        return rating.paper_rates(groups, participation=settings.participation)

    def signal_to_noise(cohorts: rating.FloatArray, noise: rating.FloatArray) -> float:
        if release == "pooled":
            return weights.pooled_signal_to_noise(cohorts, noise)
        if weighting == "paper":
            return weights.signal_to_noise(weights.paper_weights(cohorts), cohorts, noise)
        return weights.signal_to_noise(weights.inverse_variance_weights(cohorts, noise), cohorts, noise)

    ceilings = rating.largest_rates(
        groups, participation=settings.participation, fairness_floor=settings.fairness_floor
    )
    curves = [
        noise_by_rate(
            low=settings.fairness_floor * settings.participation,
            high=float(ceiling),
            epsilon=epsilon,
            delta=delta,
            num_rounds=settings.num_rounds,
            accountant=settings.accountant,
        )
        for epsilon, delta, ceiling in zip(groups.epsilons, groups.deltas, ceilings, strict=True)
    ]
    return rating.snr_rates(
        groups,
        participation=settings.participation,
        noise_curves=curves,
        signal_to_noise=signal_to_noise,
        fairness_floor=settings.fairness_floor,
    )


def _keep(
    settings: PlanSettings, rule: KeepRule, omega: tuple[float, ...], noise: tuple[float, ...], cohorts: list[float]
) -> tuple[float, ...]:
    if isinstance(rule, tuple):
        return sparsity.check_keep_fractions(rule, len(omega))
    if rule == "none":
        return (1.0,) * len(omega)
    if rule == "paper":
        return sparsity.default_keep_fractions(len(omega))
    return sparsity.closed_form_keep_fractions(
        weights=omega,
        noise_multipliers=noise,
        expected_cohorts=cohorts,
        learning_rate=settings.learning_rate,
        local_steps=settings.local_steps,
    )


def _linked_counts(settings: PlanSettings, groups: Grouping, budgets: Budgets) -> tuple[tuple[int, ...], ...]:
    """How many clients each person has in each group, without repetition."""
    if not settings.linked:
        return ()
    if budgets.clients is None:
        raise InputError("expected a budgets file that names its clients for linked clients, got counts only")
    places = {client: int(group) for client, group in zip(budgets.clients, groups.assignment, strict=True)}
    counted: dict[tuple[int, ...], None] = {}
    for person in settings.linked:
        for client in person:
            if client not in places:
                raise InputError(
                    f"linked client {client!r} is not among the budgets{suggestion(client, budgets.clients)}"
                )
        if len(set(person)) < len(person):
            raise InputError(f"expected different clients for one person, got {', '.join(person)}")
        counts = Counter(places[client] for client in person)
        counted[tuple(counts[group] for group in range(len(groups.sizes)))] = None
    return tuple(counted)


def _finished(
    settings: PlanSettings,
    groups: Grouping,
    budgets: Budgets,
    *,
    rates: tuple[float, ...],
    noise: tuple[float, ...],
    omega: tuple[float, ...],
    keep: tuple[float, ...],
    release: Release,
    clip_norms: tuple[float, ...],
    scales: tuple[float, ...],
) -> Plan:
    """The plan, its epsilons computed; raises PrivacyError if a stated noise multiplier does not keep a budget."""
    linked = _linked_counts(settings, groups, budgets)
    draft = Plan(
        method=settings.method,
        groups=tuple(
            Group(
                name=groups.names[place],
                num_clients=groups.sizes[place],
                epsilon=groups.epsilons[place],
                delta=groups.deltas[place],
                sampling_rate=rates[place],
                clip_norm=clip_norms[place],
                scale=scales[place],
                noise_multiplier=noise[place],
                weight=omega[place],
                keep_fraction=keep[place],
                epsilon_release=math.inf,
                epsilon_server=math.inf,
                mean_waste=groups.mean_waste[place],
                max_waste=groups.max_waste[place],
            )
            for place in range(len(groups.sizes))
        ),
        grouping=groups.rule,
        release=release,
        num_rounds=settings.num_rounds,
        clip_norm=settings.clip_norm,
        accountant=settings.accountant,
        accountant_version=accountant_version(),
        server_learning_rate=settings.server_learning_rate,
        averaging=settings.averaging,
        max_participations=settings.max_participations,
        clients_per_person=settings.clients_per_person,
        linked=linked,
        assignment_digest=assignment_digest(budgets.clients, groups.assignment) if linked and budgets.clients else None,
    )
    plan = guaranteed(draft)
    if any(group.epsilon_release > group.epsilon for group in plan.groups):
        plan.verify()
    return plan
