import dataclasses
import math

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import METHODS, for_method, make_plan, two_means_split
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import ACCOUNTANTS
from gdpfed.privacy.budgets import Budgets, parse_compact

PRIVATE = [name for name in METHODS if name != "fedavg"]
Small = tuple[Budgets, PlanSettings]


@pytest.mark.training
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("method", PRIVATE)
def test_every_method_keeps_every_budget(method: str, accountant: str, small: Small) -> None:
    settings = dataclasses.replace(small[1], method=method, accountant=accountant)  # type: ignore[arg-type]
    plan = make_plan(small[0], settings)
    for group in plan.groups:
        assert group.epsilon_release <= group.epsilon
        # Calibrated, not just safe: nothing worth mentioning is left (IDP's rates are rounded down).
        assert group.epsilon_release > 0.999 * group.epsilon
    assert plan.expected_cohort == pytest.approx(40, rel=2e-3)
    assert plan.method == method


@pytest.mark.parametrize("method", METHODS)
def test_every_method_verifies(method: str, small: Small) -> None:
    make_plan(small[0], dataclasses.replace(small[1], method=method)).verify()


def test_fedavg_and_dp_fedavg(small: Small) -> None:
    budgets, settings = small
    plain = make_plan(budgets, dataclasses.replace(settings, method="fedavg"))
    assert (plain.groups[0].noise_multiplier, plain.groups[0].clip_norm) == (0.0, math.inf)
    private = make_plan(budgets, dataclasses.replace(settings, method="dp-fedavg"))
    assert plain.groups[0].weight == private.groups[0].weight == 1 / 40
    assert private.groups[0].epsilon == 1.0
    assert private.groups[0].max_waste == 5.0
    assert private.mean_waste == pytest.approx((90 * 1 + 50 * 5) / 200)


def test_gdpfed_family(small: Small) -> None:
    budgets, settings = small
    plans = {name: make_plan(budgets, dataclasses.replace(settings, method=name)) for name in METHODS}
    assert [group.sampling_rate for group in plans["gdpfed"].groups] == [0.2, 0.2, 0.2]
    opc, plus = plans["gdpfed-opc"], plans["gdpfed+"]
    assert [g.noise_multiplier for g in opc.groups] == [g.noise_multiplier for g in plus.groups]
    assert [g.keep_fraction for g in opc.groups] == [1, 1, 1]
    assert [g.keep_fraction for g in plus.groups] == [0.7, 0.8, 0.9]
    # The paper's weight, by hand: r_m^2 / sum r^2 / (q n).
    cohorts = np.array([group.expected_cohort for group in opc.groups])
    assert [group.weight for group in opc.groups] == pytest.approx(cohorts**2 / (cohorts**2).sum() / 40)


def test_pfa_projects_below_the_upper_cluster(small: Small) -> None:
    plan = make_plan(small[0], dataclasses.replace(small[1], method="pfa"))
    assert [group.projected for group in plan.groups] == [True, True, False]
    assert two_means_split([0.5, 1.5, 3.0], [1, 1, 1]) == 2
    assert two_means_split([1.0, 10.0, 11.0], [1, 1, 1]) == 1
    with pytest.raises(InputError, match="at least two groups"):
        make_plan(parse_compact("50@1"), dataclasses.replace(small[1], method="pfa"))


def test_idp_methods(small: Small) -> None:
    budgets, settings = small
    sampled = make_plan(budgets, dataclasses.replace(settings, method="idp-fedavg"))
    assert len({group.noise_multiplier for group in sampled.groups}) == 1
    rates = [group.sampling_rate for group in sampled.groups]
    assert rates == sorted(rates)
    scaled = make_plan(budgets, dataclasses.replace(settings, method="idp-scale"))
    noise = np.array([group.noise_multiplier for group in scaled.groups])
    common = float((noise * np.array([60, 90, 50])).sum() / 200)
    assert [group.clip_norm for group in scaled.groups] == pytest.approx(common / noise)
    assert scaled.groups[0].noise_std == pytest.approx(common)
    assert [group.weight for group in scaled.groups] == [1 / 40] * 3


@pytest.mark.training
def test_pooled_is_best_by_signal_to_noise(fmnist: Budgets) -> None:
    """Calculated beforehand: 152 pooled, at the paper's FMNIST configuration."""
    settings = PlanSettings(num_rounds=50, participation=0.02)
    ratios = {
        name: make_plan(fmnist, dataclasses.replace(settings, method=name)).signal_to_noise
        for name in ("dp-fedavg", "gdpfed", "gdpfed-opc", "idp-scale", "pooled")
    }
    assert max(ratios, key=lambda name: ratios[name]) == "pooled"
    assert ratios["pooled"] == pytest.approx(152, abs=0.5)


def test_pooled_weight_has_a_step_of_one(small: Small) -> None:
    plan = make_plan(small[0], dataclasses.replace(small[1], method="pooled"))
    assert plan.step_size == pytest.approx(1.0)
    assert plan.groups[0].noise_std == pytest.approx(1.0)
    floor = make_plan(small[0], dataclasses.replace(small[1], method="pooled", fairness_floor=1.0))
    assert [group.sampling_rate for group in floor.groups] == pytest.approx([0.2] * 3)


def test_one_group_of_pooled_is_dp_fedavg() -> None:
    budgets, settings = parse_compact("200@1"), PlanSettings(num_rounds=10, participation=0.2, clip_norm=2.0)
    pooled = make_plan(budgets, dataclasses.replace(settings, method="pooled"))
    plain = make_plan(budgets, dataclasses.replace(settings, method="dp-fedavg"))
    assert pooled.groups[0].noise_multiplier == plain.groups[0].noise_multiplier
    assert pooled.signal_to_noise == pytest.approx(plain.signal_to_noise)
    assert pooled.noise_at_equal_step == pytest.approx(plain.noise_at_equal_step)


def test_settings_go_before_the_methods_choice(small: Small) -> None:
    budgets, settings = small

    def plan_with(**changes: object) -> list[tuple[float, float, float]]:
        plan = make_plan(budgets, dataclasses.replace(settings, **changes))  # type: ignore[arg-type]
        return [(group.sampling_rate, group.keep_fraction, group.weight) for group in plan.groups]

    assert [rate for rate, _, _ in plan_with(method="gdpfed", rates=(0.1, 0.2, 0.3))] == [0.1, 0.2, 0.3]
    assert [keep for _, keep, _ in plan_with(keep=(0.1, 0.2, 0.3))] == [0.1, 0.2, 0.3]
    assert [keep for _, keep, _ in plan_with(keep="none")] == [1.0, 1.0, 1.0]
    assert all(0.9 < keep <= 1.0 for _, keep, _ in plan_with(keep="closed-form"))
    weighted = make_plan(budgets, dataclasses.replace(settings, weights="inverse-variance"))
    assert weighted.step_size == pytest.approx(1.0)
    merged = make_plan(budgets, dataclasses.replace(settings, method="idp-fedavg", release="pooled"))
    assert merged.release == "pooled"
    assert make_plan(budgets, dataclasses.replace(settings, groups=2, method="pooled")).grouping == "chosen"
    assert len(make_plan(budgets, dataclasses.replace(settings, groups=(1.0, 6.0))).groups) == 2


def test_given_noise_is_checked(small: Small) -> None:
    budgets, settings = small
    calibrated = make_plan(budgets, dataclasses.replace(settings, method="gdpfed"))
    noise = tuple(group.noise_multiplier for group in calibrated.groups)
    more = tuple(value * 1.2 for value in noise)
    plan = make_plan(budgets, dataclasses.replace(settings, method="gdpfed", noise_multipliers=more))
    assert all(group.epsilon_release < group.epsilon for group in plan.groups)
    with pytest.raises(
        PrivacyError, match=r"'group 3' would spend .* at most \d rounds|'group 3' would spend .* at most"
    ):
        make_plan(
            budgets,
            dataclasses.replace(settings, method="gdpfed", noise_multipliers=(*noise[:2], noise[2] * 0.9)),
        )
    with pytest.raises(PrivacyError, match="at most 10 of 15 rounds"):
        make_plan(budgets, dataclasses.replace(settings, method="gdpfed", noise_multipliers=noise, num_rounds=15))


def test_a_group_that_cannot_meet_its_budget_is_named(small: Small) -> None:
    with pytest.raises(PrivacyError, match="'group 1' cannot meet its budget"):
        make_plan(small[0], dataclasses.replace(small[1], method="gdpfed", delta=1e-16))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": "gdpfedplus"}, "did you mean 'gdpfed"),
        ({"method": "dp-fedavg", "rates": "paper"}, "no choice of rates"),
        ({"method": "fedavg", "noise_multipliers": (1.0,)}, "no choice of noise_multipliers"),
        ({"method": "pooled", "keep": "paper"}, "no choice of keep"),
        ({"method": "idp-scale", "weights": "inverse-variance"}, "no choice of weights"),
        ({"method": "pfa", "release": "pooled"}, "no choice of release"),
        ({"method": "gdpfed", "rates": (0.1, 0.2)}, "rate for each of 3 groups"),
        ({"method": "gdpfed", "keep": (0.1, 0.2)}, "keep fraction for each of 3 groups"),
        ({"method": "gdpfed", "noise_multipliers": (1.0,)}, "noise multiplier for each of 3 groups"),
        ({"method": "gdpfed", "release": "pooled", "weights": "inverse-variance"}, "one weight"),
        ({"method": "gdpfed", "rates": "sample", "noise_multipliers": (1.0, 1.0, 1.0)}, "leave noise_multipliers out"),
    ],
)
def test_contradictions_are_refused(small: Small, changes: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        make_plan(small[0], dataclasses.replace(small[1], **changes))  # type: ignore[arg-type]


@pytest.mark.training
def test_many_budgets_are_grouped_by_choice() -> None:
    epsilons = np.linspace(0.5, 8, 300)
    budgets = Budgets(epsilons=epsilons, deltas=np.full(300, math.nan))
    settings = PlanSettings(method="pooled", num_rounds=10, participation=0.1, min_group_size=20)
    plan = make_plan(budgets, settings)
    assert plan.grouping == "chosen"
    assert len(plan.groups) == 8
    assert min(group.num_clients for group in plan.groups) >= 20
    assert plan.mean_waste < 1.0
    assert plan.signal_to_noise > make_plan(budgets, dataclasses.replace(settings, groups=2)).signal_to_noise


@pytest.mark.parametrize("sizes", [(501, 299, 203), (7, 3), (33, 33, 34, 1), (1, 1), (17,)])
@pytest.mark.parametrize("floor", [1.0, 1 - 1e-12])
def test_a_floor_of_one_is_uniform(sizes: tuple[int, ...], floor: float) -> None:
    """Rounding may put a ceiling below the floor: 9 of 12 odd populations ended in a traceback."""
    budgets = parse_compact(",".join(f"{size}@{1 + number}" for number, size in enumerate(sizes)))
    settings = PlanSettings(method="pooled", fairness_floor=floor, participation=0.07, num_rounds=2, delta=1e-4)
    plan = make_plan(budgets, settings)
    assert [group.sampling_rate for group in plan.groups] == pytest.approx([0.07] * len(sizes), rel=1e-9)


def test_a_floor_without_rates_to_keep_is_refused(small: tuple[Budgets, PlanSettings]) -> None:
    budgets, settings = small
    for method in ("gdpfed+", "gdpfed", "idp-fedavg", "dp-fedavg", "fedavg"):
        asked = dataclasses.replace(settings, method=method, fairness_floor=0.5)
        with pytest.raises(InputError, match="fairness_floor is for rates 'snr'"):
            make_plan(budgets, asked)
        assert for_method(asked, method).fairness_floor == settings.fairness_floor
    assert for_method(dataclasses.replace(settings, fairness_floor=0.5), "pooled").fairness_floor == 0.5
    with pytest.raises(InputError, match="fairness_floor"):
        make_plan(budgets, dataclasses.replace(settings, method="pooled", rates="uniform", fairness_floor=0.5))
    make_plan(budgets, dataclasses.replace(settings, method="gdpfed", rates="snr", fairness_floor=0.5))


@pytest.mark.parametrize("seed", range(40))
def test_any_population_is_planned_or_refused_in_words(seed: int) -> None:
    """Odd sizes, participations from 1e-6 to 1, floors of one: a plan that keeps every budget, or our own error."""
    random = np.random.default_rng(seed)
    sizes = np.maximum(1, np.round(10 ** random.uniform(0, 4, random.integers(1, 5)))).astype(int)
    epsilons = np.round(10 ** random.uniform(-1, 1.3, len(sizes)), 2)
    method = str(random.choice(list(METHODS)))
    settings = PlanSettings(
        method=method,
        num_rounds=int(10 ** random.uniform(0, 1.5)),
        participation=float(random.choice([1e-6, 1e-5, 1.0, 10 ** random.uniform(-4, 0)])),
        delta=None if random.random() < 0.3 else float(10 ** random.uniform(-12, -2)),
        fairness_floor=float(random.choice([0.25, 1.0, 1e-3])) if method == "pooled" else 0.25,
        clients_per_person=2 if method not in ("fedavg", "pooled") and random.random() < 0.2 else 1,
    )
    budgets = parse_compact(",".join(f"{size}@{epsilon}" for size, epsilon in zip(sizes, epsilons, strict=True)))
    try:
        plan = make_plan(budgets, settings)
    except (InputError, PrivacyError):
        return
    assert all(group.epsilon_release <= group.epsilon for group in plan.groups)
    assert plan.num_clients == sizes.sum()
