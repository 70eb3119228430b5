import dataclasses
import math

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import allocations, assign, check_budgets
from gdpfed.planning.plan import Plan, guaranteed
from gdpfed.planning.plan_file import plan_hash
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy import cache
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of, gaussian_epsilon
from gdpfed.privacy.adversaries import server_epsilon
from gdpfed.privacy.budgets import Budgets, parse_compact

Small = tuple[Budgets, PlanSettings]


def changed(plan: Plan, place: int, **fields: object) -> Plan:
    groups = list(plan.groups)
    groups[place] = dataclasses.replace(groups[place], **fields)  # type: ignore[arg-type]
    return dataclasses.replace(plan, groups=tuple(groups))


def test_verify_recomputes_everything(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(*small)
    plan.verify()

    def read_nothing(*_: object) -> None:
        raise AssertionError("verify read the cache")

    monkeypatch.setattr(cache, "_read", read_nothing)
    monkeypatch.setattr(cache, "_key", read_nothing)
    plan.verify()
    for field in ("epsilon_release", "epsilon_server"):
        for factor in (0.9, 1.1):
            false = changed(plan, 1, **{field: getattr(plan.groups[1], field) * factor})
            with pytest.raises(PrivacyError, match=f"claims {field}"):
                false.verify()


@pytest.mark.parametrize(
    "edit",
    [
        {"noise_multiplier": 0.99},
        {"sampling_rate": 1.01},
        {"epsilon": 0.999},
        {"delta": 0.5},
    ],
)
def test_overspending_is_refused(small: Small, edit: dict[str, float]) -> None:
    plan = make_plan(*small)
    ((field, factor),) = edit.items()
    with pytest.raises(PrivacyError, match=r"more than its budget of .* at most \d+ of 10 rounds"):
        changed(plan, 0, **{field: getattr(plan.groups[0], field) * factor}).verify()
    with pytest.raises(PrivacyError, match="would spend"):
        dataclasses.replace(plan, num_rounds=11).verify()


def test_pooled_noise_is_one(small: Small) -> None:
    budgets, settings = small
    plan = make_plan(budgets, dataclasses.replace(settings, method="pooled"))
    assert np.ptp([group.noise_std for group in plan.groups]) < 1e-12
    with pytest.raises(PrivacyError, match="one noise draw"):
        changed(plan, 0, scale=plan.groups[0].scale * 1.01)
    with pytest.raises(InputError, match="keep_fraction 1"):
        changed(plan, 0, keep_fraction=0.5)


def test_a_plan_is_a_value(small: Small) -> None:
    plan, again = make_plan(*small), make_plan(*small)
    assert plan == again
    assert plan_hash(plan) == plan_hash(again)
    assert hash(plan) == hash(again)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.num_rounds = 99  # type: ignore[misc]
    for other in (
        dataclasses.replace(plan, num_rounds=9),
        changed(plan, 2, sampling_rate=plan.groups[2].sampling_rate * (1 - 1e-15)),
    ):
        assert plan_hash(other) != plan_hash(plan)


def test_epsilons_are_the_mechanisms(small: Small) -> None:
    plan = make_plan(small[0], dataclasses.replace(small[1], max_participations=3))
    for group in plan.groups:
        judged = SampledGaussian(
            noise_multiplier=group.noise_multiplier, sampling_rate=group.sampling_rate, num_rounds=plan.num_rounds
        )
        assert group.epsilon_release == epsilon_of(judged, delta=group.delta)
        assert group.epsilon_server == server_epsilon(
            noise_multiplier=group.noise_multiplier, num_participations=3, delta=group.delta
        )
    assert plan.system_guarantee.epsilon == max(group.epsilon_release for group in plan.groups)


@pytest.mark.training
@pytest.mark.parametrize("method", ["gdpfed", "pooled"])
def test_person_level_guarantee(method: str) -> None:
    settings = PlanSettings(method=method, num_rounds=5, participation=0.2, clients_per_person=2)
    plan = make_plan(parse_compact("40@1,60@4"), settings)
    assert set(allocations(plan)) == {(2, 0), (1, 1), (0, 2)}
    assert plan.person_guarantee is not None
    # Two clients of the laxest group, in one sum: more than twice its epsilon at the same delta.
    assert plan.person_guarantee.epsilon > plan.system_guarantee.epsilon * 1.5
    plan.verify()
    with pytest.raises(PrivacyError, match="epsilon_person"):
        dataclasses.replace(plan, epsilon_person=plan.person_guarantee.epsilon * 0.9).verify()
    with pytest.raises(PrivacyError, match="epsilon_person"):
        dataclasses.replace(plan, epsilon_person=None).verify()


def test_linked_clients_are_counted_by_group() -> None:
    budgets = Budgets(
        epsilons=np.array([1.0, 1.0, 4.0, 4.0, 4.0]), deltas=np.full(5, math.nan), clients=("a", "b", "c", "d", "e")
    )
    base = PlanSettings(method="gdpfed", num_rounds=3, participation=0.5, delta=1e-3)
    plan = make_plan(budgets, dataclasses.replace(base, linked=(("a", "c"), ("b", "d"), ("c", "d", "e"))))
    assert plan.linked == ((1, 1), (0, 3))
    assert plan.person_guarantee is not None
    assert "any one of the listed people, in up to 3 clients" in plan.person_guarantee.unit
    with pytest.raises(InputError, match="'z' is not among"):
        make_plan(budgets, dataclasses.replace(base, linked=(("a", "z"),)))
    with pytest.raises(InputError, match="different clients"):
        make_plan(budgets, dataclasses.replace(base, linked=(("a", "a"),)))
    with pytest.raises(InputError, match="names its clients"):
        make_plan(parse_compact("4@1,5@2"), dataclasses.replace(base, linked=(("1", "2"),)))


def test_empty_promises_are_refused(small: Small) -> None:
    """A delta of half the probability of taking part is refused where a plan is made and where it is verified."""
    plan = make_plan(*small)
    rate = plan.groups[0].sampling_rate
    half = (1 - (1 - rate) ** plan.num_rounds) / 2
    for delta in (half * (1 + 1e-9), 0.99 * 2 * half, 0.999):
        with pytest.raises(PrivacyError, match="a client of 'group 1' takes part at all"):
            changed(plan, 0, delta=delta).verify()
        with pytest.raises(PrivacyError, match="takes part at all"):
            make_plan(parse_compact("200@1"), dataclasses.replace(small[1], rates=(rate,), delta=delta))
    with pytest.raises(PrivacyError, match="claims epsilon_release"):
        changed(plan, 0, delta=half * (1 - 1e-9)).verify()


def test_too_many_allocations_are_refused() -> None:
    settings = PlanSettings(method="gdpfed", num_rounds=3, participation=0.5, clients_per_person=4, delta=1e-3)
    with pytest.raises(InputError, match="ways to spread"):
        make_plan(parse_compact("9@1,9@2,9@3,9@4,9@5"), settings)
    with pytest.raises(InputError, match="from 1 to 4"):
        make_plan(parse_compact("90@1"), dataclasses.replace(settings, clients_per_person=1_000_000))


@pytest.mark.training
def test_a_person_within_a_pooled_sum_is_not_a_composition() -> None:
    """At rate 1, by hand: two clients of a pooled sum shift it by the sum of their 1 / noise multipliers."""
    settings = PlanSettings(method="pooled", num_rounds=3, participation=1.0, clients_per_person=2, delta=1e-4)
    plan = make_plan(parse_compact("50@1,50@3"), settings)
    largest = 1 / min(group.noise_multiplier for group in plan.groups)
    expected = gaussian_epsilon(noise_multiplier=1 / (2 * largest), num_releases=3, delta=1e-4)
    assert plan.epsilon_person == pytest.approx(expected, rel=5e-3)
    # A pair across groups: shifts add, they do not compose.
    both = dataclasses.replace(plan, clients_per_person=1, linked=((1, 1),), assignment_digest="0" * 64)
    shift = sum(1 / group.noise_multiplier for group in plan.groups)
    pair = gaussian_epsilon(noise_multiplier=1 / shift, num_releases=3, delta=1e-4)
    assert guaranteed(both).epsilon_person == pytest.approx(pair, rel=5e-3)


def test_who_is_not_linked_is_a_person_too() -> None:
    budgets = Budgets(epsilons=np.array([0.5] * 4 + [9.0] * 4), deltas=np.full(8, math.nan), clients=tuple("abcdefgh"))
    settings = PlanSettings(method="gdpfed", num_rounds=3, participation=0.5, delta=1e-3, linked=(("a", "b"),))
    plan = make_plan(budgets, settings)
    assert plan.epsilon_person == plan.groups[1].epsilon_release
    assert plan.person_guarantee is not None
    assert "listed people" in plan.person_guarantee.unit


def test_a_plan_without_privacy_claims_none(small: Small) -> None:
    """Every epsilon set to infinity must not make a private plan's claims pass."""
    plan = make_plan(*small)
    with pytest.raises(PrivacyError, match="states none"):
        dataclasses.replace(plan.groups[0], epsilon=math.inf)
    free = make_plan(small[0], dataclasses.replace(small[1], method="fedavg"))
    assert free.system_guarantee is None
    with pytest.raises(PrivacyError, match="keeps nobody's budget"):
        check_budgets(free, small[0], default_delta=1e-3)
    with pytest.raises(PrivacyError, match="states none"):
        dataclasses.replace(free.groups[0], epsilon_release=1.0)


@pytest.mark.parametrize("field", ["epsilon_release", "epsilon_server"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_odd_claims_are_refused(small: Small, field: str, value: float) -> None:
    with pytest.raises(PrivacyError, match=f"claims {field}"):
        changed(make_plan(*small), 0, **{field: value}).verify()


@pytest.mark.training
def test_noise_figures() -> None:
    """By hand: one group's comparable noise is C^2 sigma^2, and pooling leaves 1 / signal-to-noise^2 of it."""
    budgets = parse_compact("100@1,100@4")
    settings = PlanSettings(num_rounds=5, participation=0.1, clip_norm=1.5)
    one = make_plan(budgets, dataclasses.replace(settings, method="dp-fedavg"))
    assert one.noise_at_equal_step == pytest.approx(2.25 * one.groups[0].noise_multiplier ** 2)
    assert one.paper_noise_magnitude == pytest.approx(one.noise_at_equal_step)
    for method in ("dp-fedavg", "gdpfed", "gdpfed-opc", "idp-fedavg", "idp-scale", "pooled"):
        plan = make_plan(budgets, dataclasses.replace(settings, method=method))
        expected = (settings.clip_norm * plan.expected_cohort / plan.signal_to_noise) ** 2
        assert plan.noise_at_equal_step == pytest.approx(expected), method


def test_own_deltas_are_kept() -> None:
    budgets = Budgets(
        epsilons=np.array([1.0] * 50 + [4.0] * 50), deltas=np.r_[np.full(50, math.nan), np.full(50, 1e-7)]
    )
    plan = make_plan(budgets, PlanSettings(method="gdpfed", num_rounds=4, participation=0.2, delta=1e-4))
    assert [group.delta for group in plan.groups] == [1e-4, 1e-7]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("num_clients", 0, InputError),
        ("delta", 0.0, InputError),
        ("sampling_rate", 1.5, InputError),
        ("sampling_rate", math.nan, InputError),
        ("keep_fraction", 0.0, InputError),
        ("weight", math.inf, InputError),
        ("scale", 0.0, InputError),
        ("clip_norm", 0.0, PrivacyError),
        ("clip_norm", math.inf, PrivacyError),
        ("noise_multiplier", 1e-200, InputError),
        ("noise_multiplier", 1e300, InputError),
        ("weight", 1e308, InputError),
        ("mean_waste", math.nan, InputError),
        ("noise_multiplier", 0.0, PrivacyError),
        ("noise_multiplier", math.nan, InputError),
        ("epsilon", 0.0, InputError),
        ("epsilon", math.nan, InputError),
        ("epsilon", math.inf, PrivacyError),
    ],
)
def test_bad_groups_are_refused(small: Small, field: str, value: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        changed(make_plan(*small), 0, **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("groups", (), InputError),
        ("adjacency", "replace-one", PrivacyError),
        ("sampling", "fixed-size", PrivacyError),
        ("release", "sum", InputError),
        ("num_rounds", 0, InputError),
        ("accountant", "gdp", InputError),
        ("server_learning_rate", 0.0, InputError),
        ("max_participations", 0, InputError),
        ("clients_per_person", 0, InputError),
        ("linked", ((1,),), InputError),
        ("linked", ((2, -1, 0),), InputError),
        ("linked", ((0, 0, 51),), InputError),
        ("linked", ((13, 0, 0),), InputError),
        ("linked", ((1, 1, 0),), PrivacyError),
        ("assignment_digest", "0" * 64, InputError),
        ("clip_norm", -1.0, InputError),
        ("clip_norm", math.nan, InputError),
        ("num_rounds", 10**9, InputError),
    ],
)
def test_bad_plans_are_refused(small: Small, field: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        dataclasses.replace(make_plan(*small), **{field: value})  # type: ignore[arg-type]


def test_guaranteed_leaves_a_plan_without_privacy_alone(small: Small) -> None:
    plan = make_plan(small[0], dataclasses.replace(small[1], method="fedavg"))
    assert guaranteed(plan) is plan
    plan.verify()
    assert not plan.is_private
    assert math.isinf(plan.signal_to_noise)
    assert plan.step_size == pytest.approx(1.0)
    assert assign(plan, small[0]).tolist() == [0] * 200
