"""Every method under comparison, as its choice at each arrow from budgets to a plan.

Place: the planner's top: budgets -> groups -> rates -> noise -> weights -> sparsity -> Plan. `make_plan` takes the
first and the last arrow, `_mechanisms` those between. What `PlanSettings` states goes before the method's own choice,
and what would contradict the method is refused.

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
    auto         pooled, with nothing to choose: updates scaled to one norm, a step that the server finds from what it
                 has released, an average over a tenth of the rounds

Guarantees (tests of the same name):
  every_method_keeps_every_budget     under both accountants.
  every_method_verifies               the plan that comes out passes its own verify().
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpfed.errors import InputError, PrivacyError, suggestion
from gdpfed.planning import asks
from gdpfed.planning.groups import FloatArray, Grouping, Members, group_everyone, make_groups
from gdpfed.planning.noise_curves import NoiseCurve, noise_curve
from gdpfed.planning.own_methods import own_method, own_names, planned_by
from gdpfed.planning.people import PersonLoss, assignment_digest, linked_counts, spreads_of
from gdpfed.planning.person_limit import PersonLimit
from gdpfed.planning.plan import ADJACENCIES, Group, Plan, ReleaseKind, guaranteed
from gdpfed.planning.rates import largest_rates, paper_rates, sample_rates, snr_rates, uniform_rates
from gdpfed.planning.settings import KeepRule, PlanSettings, RateRule
from gdpfed.planning.sparsity import check_keep_fractions, closed_form_keep_fractions, default_keep_fractions
from gdpfed.planning.weights import WEIGHTS, pooled_signal_to_noise, signal_to_noise
from gdpfed.privacy.accountant import accountant_version
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.calibrate import noise_multiplier_for, rough_noise_multiplier

# Of those asked: with fewer in a sum the noise of the others would have to be larger.
_MIN_ROSTER = 0.5

__all__ = [
    "COMPARED", "METHODS", "Choices", "check_method", "for_method", "make_plan", "plan_frontier", "two_means_split",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a method chooses where the settings state nothing. Of the settings in ``fixed`` it leaves no choice."""

    fixed: tuple[str, ...] = ()
    is_private: bool = True
    has_one_group: bool = False
    rates: RateRule = "uniform"
    keep: KeepRule = "none"
    release: ReleaseKind = "per-group"
    clips_by_noise: bool = False
    projects: bool = False
    needs_no_tuning: bool = False


# What promises something to people in several clients.
_FOR_PEOPLE = ("linked", "clients_per_person", "person_epsilon")

METHODS: dict[str, Choices] = {
    "fedavg": Choices(
        is_private=False,
        has_one_group=True,
        fixed=(*_FOR_PEOPLE, "groups", "rates", "noise_multipliers", "keep", "weights", "release"),
    ),
    "dp-fedavg": Choices(has_one_group=True, fixed=("groups", "rates", "keep", "weights", "release")),
    "gdpfed": Choices(),
    "gdpfed-opc": Choices(rates="paper"),
    "gdpfed+": Choices(rates="paper", keep="paper"),
    "pfa": Choices(projects=True, fixed=("release",)),
    "idp-fedavg": Choices(rates="sample", fixed=("rates", "noise_multipliers")),
    "idp-scale": Choices(
        release="pooled", clips_by_noise=True, fixed=("rates", "keep", "weights", "release", "noise_multipliers")
    ),
    "pooled": Choices(release="pooled", rates="snr", fixed=("keep", "weights", "release")),
    "auto": Choices(release="pooled", rates="snr", needs_no_tuning=True, fixed=("keep", "weights", "release")),
}
# What is shown side by side unless others are named.
COMPARED = ("dp-fedavg", "gdpfed", "gdpfed-opc", "gdpfed+", "pfa", "idp-fedavg", "idp-scale", "pooled")


def check_method(name: str) -> str:
    """Returns ``name`` if it is a method, else says which there are."""
    if name not in METHODS and own_method(name) is None:
        known = [*METHODS, *own_names()]
        raise InputError(f"expected a method among {', '.join(known)}, got {name!r}{suggestion(name, known)}")
    return name


def make_plan(budgets: Budgets, settings: PlanSettings) -> Plan:
    """Plans ``settings.method`` for these budgets: every epsilon computed, every budget kept, or an error that says
    why not. Against the server, asks and trainings that are not stated are found first (`asks.py`)."""
    check_method(settings.method)
    own = None if settings.method in METHODS else own_method(settings.method)
    if own is not None:
        return planned_by(own, budgets, settings)
    if METHODS[settings.method].is_private:
        settings = asks.balanced(settings, lambda stated: _planned(budgets, stated))
    return _planned(budgets, settings)


def plan_frontier(
    budgets: Budgets, settings: PlanSettings, *, watch: Callable[[asks.FrontierPoint], None] = lambda _: None
) -> asks.Frontier:
    """For each number of asks the fewest trainings that keep the signal-to-noise of the plan against models: what
    hiding from the server costs. ``watch`` is told every point when it is found; stated asks and trainings are left
    out of account."""
    if not METHODS[check_method(settings.method)].is_private:
        raise InputError(f"{settings.method} has no privacy, and nothing to hide: take another method")
    unstated = dataclasses.replace(settings, against="server", asks=None, trainings=None)
    points = []
    for point in asks.frontier(unstated, lambda stated: _planned(budgets, stated)):
        points.append(point)
        watch(point)
    if not points:
        raise InputError(asks.NO_POINT)
    return asks.Frontier(
        against_models=_planned(budgets, dataclasses.replace(unstated, against="models")), points=tuple(points)
    )


def _planned(budgets: Budgets, settings: PlanSettings) -> Plan:
    method = METHODS[settings.method]
    for name in method.fixed:
        if name in settings.changed():
            raise InputError(f"{settings.method} leaves no choice of {name}: leave {name} out, or take another method")
    if "fairness_floor" in settings.changed() and (settings.rates or method.rates) != "snr":
        raise InputError(
            f"fairness_floor is for rates 'snr', which {settings.method} does not have here: leave fairness_floor out, "
            f"or take method pooled, or rates 'snr'"
        )
    settings = _tuned(settings, method)
    release = settings.release or method.release
    if release == "pooled" and settings.weights is not None:
        raise InputError("a pooled sum has one weight: leave weights out")
    of_a_client, asked = settings, 1.0
    rotation: dict[str, Any] = {}
    if settings.against == "server" and method.is_private and settings.asks and settings.trainings:
        # A client is in as many releases as it is asked for, in each with the probability of its coin.
        asked, coin = settings.asks / settings.num_rounds, settings.trainings / settings.asks
        of_a_client = dataclasses.replace(settings, num_rounds=settings.asks, participation=coin)
        rotation = {
            "sampling": "rotation",
            "adjacency": ADJACENCIES["rotation"],
            "asks": settings.asks,
            "min_roster": _MIN_ROSTER,
            "bands": _bands(settings) if settings.correlated_noise else None,
        }
    if method.has_one_group:
        grouping = group_everyone(budgets, budgets.default_delta if settings.delta is None else settings.delta)
    else:
        grouping = make_groups(budgets, of_a_client, release=release)
    linked = linked_counts(settings.linked, budgets, grouping.assignment)
    if method.is_private:
        groups = _mechanisms(grouping, of_a_client, method, release, linked, asked=asked)
    else:
        groups = _without_privacy(grouping, settings)
    if method.projects:
        groups = _projected(groups)
    plan = guaranteed(
        Plan(
            method=settings.method,
            groups=groups,
            grouping=grouping.rule,
            release=release,
            num_rounds=settings.num_rounds,
            **rotation,
            clip_norm=settings.clip_norm if method.is_private else math.inf,
            normalised=bool(settings.normalised),
            accountant=settings.accountant,
            accountant_version=accountant_version(),
            server_learning_rate=settings.server_learning_rate,
            adaptive_step=bool(settings.adaptive_step),
            averaging=settings.averaging,
            max_participations=settings.max_participations,
            clients_per_person=settings.clients_per_person,
            person_epsilon=settings.person_epsilon,
            linked=linked,
            assignment_digest=(
                assignment_digest(budgets.clients, grouping.assignment) if linked and budgets.clients else None
            ),
        )
    )
    over = any(group.epsilon_release > group.epsilon for group in plan.groups)
    if over or (plan.person_epsilon is not None and (plan.epsilon_person or 0.0) > plan.person_epsilon):
        # A stated noise multiplier does not keep a budget, or a person's limit: the error says by how much.
        plan.verify()
    return plan


def _tuned(settings: PlanSettings, method: Choices) -> PlanSettings:
    """How updates are bounded and what the server does with their sums, where the settings leave it to the method."""
    adaptive = method.needs_no_tuning if settings.adaptive_step is None else settings.adaptive_step
    return dataclasses.replace(
        settings,
        normalised=method.needs_no_tuning if settings.normalised is None else settings.normalised,
        adaptive_step=adaptive,
        averaging=settings.averaging or (tenth_of(settings.num_rounds) if adaptive else 0.0),
    )


def tenth_of(num_rounds: int) -> float:
    """How fast an average forgets that is over a tenth of the rounds, but over two at least."""
    return round(max(0.5, 1 - 10 / num_rounds), 2)


def _bands(settings: PlanSettings) -> int:
    """All rounds from one ask to the next."""
    between = settings.num_rounds // (settings.asks or 1)
    if between < 2:
        raise InputError(
            f"expected at least two rounds for each ask for correlated noise, got {settings.asks} asks in "
            f"{settings.num_rounds} rounds: state fewer asks"
        )
    return between


def for_method(settings: PlanSettings, name: str) -> PlanSettings:
    """The same settings for another method, for comparisons: a floor goes where there are no rates to keep above it."""
    asked = dataclasses.replace(settings, method=check_method(name))
    # An own method reads its settings itself.
    if name not in METHODS or (settings.rates or METHODS[name].rates) == "snr":
        return asked
    return dataclasses.replace(asked, fairness_floor=PlanSettings().fairness_floor)


def _mechanisms(
    grouping: Grouping,
    settings: PlanSettings,
    method: Choices,
    release: ReleaseKind,
    linked: tuple[tuple[int, ...], ...],
    *,
    asked: float,
) -> tuple[Group, ...]:
    """Rates, noise, weights, sparsity, in this order; what they cost is still to be computed.

    ``settings`` are those of a client's own releases, in which a fraction ``asked`` of the clients may be.
    """
    noise = settings.noise_multipliers
    limit, limited = None, grouping
    if settings.person_epsilon is not None and noise is None:
        limit = PersonLimit(
            epsilon=settings.person_epsilon,
            groups=grouping.groups,
            loss=PersonLoss(
                spreads=spreads_of(grouping.sizes, clients_per_person=settings.clients_per_person, linked=linked),
                release=release,
                num_rounds=settings.num_rounds,
                delta=max(grouping.deltas),
                accountant=settings.accountant,
                is_rotation=settings.against == "server",
            ),
        )
        # Rates are chosen for what the groups may spend within the limit, about.
        uniform = uniform_rates(grouping, participation=settings.participation)
        limited = grouping.cut_off(limit.level(uniform, _calibrated(grouping, uniform, settings)))
    match method.rates if settings.rates is None else settings.rates:
        case "uniform":
            rates = uniform_rates(grouping, participation=settings.participation)
        case "paper":
            rates = paper_rates(limited, participation=settings.participation)
        case "snr":
            rates = _snr_rates(limited, settings, release)
        case "sample":
            if noise is not None:
                raise InputError("rates 'sample' choose the noise multiplier themselves: leave noise_multipliers out")
            common, rates = sample_rates(
                limited,
                participation=settings.participation,
                num_rounds=settings.num_rounds,
                accountant=settings.accountant,
            )
            noise = (common,) * len(rates)
        case stated:
            rates = stated
    _expect_one_each("rate", rates, grouping)
    noise = _calibrated(grouping, rates, settings) if noise is None else noise
    _expect_one_each("noise multiplier", noise, grouping)
    noise = noise if limit is None else limit.noise(rates, noise)
    groups = [
        _group(members, sampling_rate=rate, noise_multiplier=multiplier, clip_norm=settings.clip_norm, asked=asked)
        for members, rate, multiplier in zip(grouping.groups, rates, noise, strict=True)
    ]

    cohorts = [group.expected_cohort for group in groups]
    if release == "pooled":
        groups = _sharing_one_draw(groups, settings, method)
    else:
        weights = WEIGHTS[settings.weights or "paper"](cohorts, noise)
        groups = [dataclasses.replace(group, weight=weight) for group, weight in zip(groups, weights, strict=True)]

    keep_rule = settings.keep if settings.keep is not None else "none" if release == "pooled" else method.keep
    if keep_rule == "none":
        return tuple(groups)
    if keep_rule == "paper":
        fractions = default_keep_fractions(len(groups))
    elif keep_rule == "closed-form":
        fractions = closed_form_keep_fractions(
            weights=[group.weight for group in groups],
            noise_multipliers=noise,
            expected_cohorts=cohorts,
            learning_rate=settings.learning_rate,
            local_steps=settings.local_steps,
        )
    else:
        fractions = check_keep_fractions(keep_rule, len(groups))
    return tuple(
        dataclasses.replace(group, keep_fraction=fraction) for group, fraction in zip(groups, fractions, strict=True)
    )


def _snr_rates(grouping: Grouping, settings: PlanSettings, release: ReleaseKind) -> tuple[float, ...]:
    """Rates for the largest signal-to-noise of this release, with these weights."""
    participation, floor = settings.participation, settings.fairness_floor

    def signal_to_noise_of(cohorts: FloatArray, noise: FloatArray) -> float:
        if release == "pooled":
            return pooled_signal_to_noise(cohorts, noise)
        return signal_to_noise(WEIGHTS[settings.weights or "paper"](cohorts, noise), cohorts, noise)

    def curve_of(members: Members, ceiling: float) -> NoiseCurve:
        return noise_curve(
            lambda rate: rough_noise_multiplier(
                **members.budget(settings.num_rounds, settings.accountant), sampling_rate=min(rate, 1.0)
            ),
            low=floor * participation,
            high=ceiling,
            accountant=settings.accountant,
        )

    ceilings = largest_rates(grouping, participation=participation, fairness_floor=floor)
    return snr_rates(
        grouping,
        participation=participation,
        noise_curves=[curve_of(*pair) for pair in zip(grouping.groups, ceilings.tolist(), strict=True)],
        signal_to_noise=signal_to_noise_of,
        fairness_floor=floor,
    )


def _expect_one_each(what: str, values: Sequence[float], grouping: Grouping) -> None:
    if len(values) != len(grouping.groups):
        raise InputError(
            f"expected a {what} for each of {len(grouping.groups)} groups, strictest first, got {len(values)}"
        )


def _calibrated(grouping: Grouping, rates: Sequence[float], settings: PlanSettings) -> tuple[float, ...]:
    """The least noise that keeps the budget of each group; the error names the group."""

    def noise(members: Members, rate: float) -> float:
        try:
            return noise_multiplier_for(**members.budget(settings.num_rounds, settings.accountant), sampling_rate=rate)
        except PrivacyError as error:
            raise PrivacyError(f"{members.name!r} cannot meet its budget: {error}") from None

    return tuple(noise(*pair) for pair in zip(grouping.groups, rates, strict=True))


def _group(
    members: Members,
    *,
    sampling_rate: float,
    noise_multiplier: float,
    clip_norm: float,
    asked: float = 1.0,
    weight: float = 1.0,
) -> Group:
    """The group; what its mechanism costs, and often its weight, are still to come."""
    return Group(
        **vars(members),
        sampling_rate=sampling_rate,
        asked=asked,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        weight=weight,
        epsilon_release=math.inf,
        epsilon_server=math.inf,
    )


def _without_privacy(grouping: Grouping, settings: PlanSettings) -> tuple[Group, ...]:
    """Every client in one group that promises nothing, hence wastes nothing."""
    (members,) = grouping.groups
    members = dataclasses.replace(members, epsilon=math.inf, mean_waste=0.0, max_waste=0.0)
    rate = settings.participation
    weight = 1 / (rate * members.num_clients)
    return (_group(members, sampling_rate=rate, noise_multiplier=0.0, clip_norm=math.inf, weight=weight),)


def _sharing_one_draw(groups: Sequence[Group], settings: PlanSettings, method: Choices) -> list[Group]:
    """Weights of a pooled sum, and what makes one noise draw fit every group: clip norms, or factors on the updates."""
    noise = [group.noise_multiplier for group in groups]
    if not method.clips_by_noise:
        weight = 1 / pooled_signal_to_noise([group.expected_cohort for group in groups], noise)
        return [dataclasses.replace(group, weight=weight, scale=1 / group.noise_multiplier) for group in groups]
    num_clients = sum(group.num_clients for group in groups)
    mean = math.fsum(group.num_clients * group.noise_multiplier for group in groups) / num_clients
    return [
        dataclasses.replace(
            group,
            weight=1 / (group.asked * settings.participation * num_clients),
            clip_norm=settings.clip_norm * mean / group.noise_multiplier,
        )
        for group in groups
    ]


def _projected(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Marks the groups below the upper cluster of budgets: PFA projects their sum."""
    if len(groups) < 2:
        raise InputError("expected at least two groups for pfa, got one: with equal budgets use dp-fedavg")
    split = two_means_split([group.epsilon for group in groups], [group.num_clients for group in groups])
    return tuple(dataclasses.replace(group, projected=index < split) for index, group in enumerate(groups))


def two_means_split(epsilons: list[float], sizes: list[int]) -> int:
    """Where the upper of two clusters of sorted budgets starts: the split with the least variance within (exact in one
    dimension)."""
    values, counts = np.array(epsilons), np.array(sizes, dtype=np.float64)

    def within(part: slice) -> float:
        mean = np.average(values[part], weights=counts[part])
        return float((counts[part] * (values[part] - mean) ** 2).sum())

    return min(range(1, len(values)), key=lambda split: within(slice(0, split)) + within(slice(split, None)))
