import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning import asks
from gdpfed.planning.methods import METHODS, _planned, make_plan, plan_frontier
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_from_toml, plan_hash, plan_to_toml
from gdpfed.planning.settings import PlanSettings
from gdpfed.planning.spent import spent_so_far
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.budgets import Budgets, parse_compact

SMALL = parse_compact("60@1,90@2,50@6")
AGAINST_SERVER = PlanSettings(method="gdpfed", num_rounds=10, participation=0.2, against="server")


def planned(settings: PlanSettings) -> Plan:
    return _planned(SMALL, settings)


def epsilon_by_dp_accounting(noise: float, coin: float, asked: int, delta: float) -> float:
    """The oracle: dp-accounting's own accountant on composed events."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    event = dp_accounting.PoissonSampledDpEvent(coin, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, asked))
    return float(accountant.get_epsilon(delta))


def test_fmnist_holds_against_the_server(fmnist: Budgets) -> None:
    plan = make_plan(fmnist, PlanSettings(method="pooled", against="server", asks=10, trainings=2.68))
    assert plan.signal_to_noise >= 149
    for group, promised in zip(plan.groups, (0.5, 1.5, 3.0), strict=True):
        assert group.epsilon_server == group.epsilon_release <= promised
        less = dataclasses.replace(plan.mechanism(group), noise_multiplier=0.995 * group.noise_multiplier)
        assert epsilon_of(less, delta=group.delta) > promised


def test_published_numbers_are_met() -> None:
    # Noise 1.2758 at coin 0.1: 1.42 after 10 asks, 2.83 after 50.
    for asked, epsilon in ((10, 1.42), (50, 2.83)):
        mechanism = SampledGaussian(noise_multiplier=1.2758, sampling_rate=0.1, num_rounds=asked)
        assert epsilon_of(mechanism, delta=6000**-1.1) == pytest.approx(epsilon, abs=0.01)
    silos = parse_compact("34@1,33@3,33@8")
    asked_always = PlanSettings(
        method="gdpfed", num_rounds=100, participation=0.2, delta=1e-3, against="server", asks=100, trainings=20.0
    )
    plan = make_plan(silos, asked_always)
    assert [group.noise_multiplier for group in plan.groups] == pytest.approx([5.274, 2.244, 1.174], abs=1e-3)


@pytest.mark.training
def test_an_independent_accountant_agrees() -> None:
    """200 random settings; its grid is coarser than ours, so its epsilon may be a little above."""
    draw = np.random.default_rng(18)
    for _ in range(200):
        noise, coin = math.exp(draw.uniform(math.log(0.6), math.log(8))), draw.uniform(0.01, 0.9)
        asked, delta = int(draw.integers(1, 61)), 10 ** draw.uniform(-7, -3)
        ours = epsilon_of(SampledGaussian(noise_multiplier=noise, sampling_rate=coin, num_rounds=asked), delta=delta)
        theirs = epsilon_by_dp_accounting(noise, coin, asked, delta)
        assert theirs - 0.01 * theirs - 2e-3 <= ours <= theirs * (1 + 1e-5) + 1e-5


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.is_private])
def test_every_method_holds_against_the_server(name: str) -> None:
    settings = dataclasses.replace(AGAINST_SERVER, method=name, asks=5, trainings=1.5)
    plan = make_plan(SMALL, settings)
    plan.verify()
    assert plan.is_rotation
    assert plan.adjacency == "zero-out-one-client"
    assert plan.trainings == pytest.approx(1.5, rel=1e-4)
    assert plan.expected_cohort == pytest.approx(1.5 * 200 / 10, rel=1e-4)
    for group in plan.groups:
        assert group.epsilon_server == group.epsilon_release <= group.epsilon
    assert plan_from_toml(plan_to_toml(plan)) == plan


def test_one_epsilon_against_both() -> None:
    plan = planned(dataclasses.replace(AGAINST_SERVER, asks=5, trainings=2.0))
    for group in plan.groups:
        assert plan.mechanism(group).num_rounds == 5
        view = plan.server_view(group)
        assert {view.epsilon_mean, view.epsilon_p99, view.epsilon_max} == {group.epsilon_release}
        assert view.max_participations == plan.participation_cap == 5
        own = epsilon_by_dp_accounting(group.noise_multiplier, group.sampling_rate, 5, group.delta)
        assert group.epsilon_release == pytest.approx(own, rel=0.01)
    assert plan.system_guarantee is not None
    assert plan.system_guarantee.adversary == "whoever sees the released models, and the server"
    # After each round the most asked client counts, and at the end all have spent the same.
    spent = [spent_so_far(plan, rounds)[0] for rounds in range(11)]
    assert spent == sorted(spent)
    assert spent[-1] == plan.groups[0].epsilon_release
    assert spent[1] == spent[2] < spent[3]


def test_groups_that_are_seldom_asked_have_spent_nothing_yet() -> None:
    """Three clients, one ask in eleven rounds: nobody of the small group is asked in the first."""
    settings = dataclasses.replace(AGAINST_SERVER, num_rounds=11, asks=1, trainings=0.5, delta=1e-3)
    plan = _planned(parse_compact("3@1,90@2"), settings)
    spent = [spent_so_far(plan, rounds) for rounds in range(12)]
    assert spent[1][0] == 0.0
    assert spent[1][1] > 0
    assert spent[-1] == tuple(group.epsilon_release for group in plan.groups)


def test_asking_everybody_always_is_the_plan_of_today() -> None:
    today = make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, against="models"))
    always = planned(dataclasses.replace(AGAINST_SERVER, asks=10, trainings=2.0))
    for one, other in zip(today.groups, always.groups, strict=True):
        assert dataclasses.replace(other, epsilon_server=one.epsilon_server) == one
        assert other.epsilon_server == other.epsilon_release == one.epsilon_release < one.epsilon_server
    assert plan_hash(today) != plan_hash(always)


def test_a_person_in_a_rotation_costs_more_than_a_client() -> None:
    plan = planned(dataclasses.replace(AGAINST_SERVER, asks=5, trainings=1.0, clients_per_person=2))
    assert plan.epsilon_person is not None
    assert plan.epsilon_person > max(group.epsilon_release for group in plan.groups)
    plan.verify()


def test_the_signal_is_kept() -> None:
    wanted = make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, against="models")).signal_to_noise
    for stated in ({"asks": 8}, {"trainings": 3.0}, {}):
        plan = make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, **stated))  # type: ignore[arg-type]  # by name
        assert plan.signal_to_noise >= wanted * (1 - 1e-12)


def test_trainings_are_the_fewest() -> None:
    wanted = make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, against="models")).signal_to_noise
    plan = make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, asks=8))
    fewer = planned(dataclasses.replace(AGAINST_SERVER, asks=8, trainings=0.99 * plan.trainings))
    assert fewer.signal_to_noise < wanted <= plan.signal_to_noise


def test_the_cheapest_is_recommended() -> None:
    for cost in (0.05, 1.0):
        settings = dataclasses.replace(AGAINST_SERVER, ask_cost=cost)
        points = list(asks.frontier(settings, planned))
        chosen = make_plan(SMALL, settings)
        assert chosen.asks == min(points, key=lambda point: point.cost).asks
    assert [point.asks for point in points] == sorted({point.asks for point in points}, reverse=True)
    trainings = [point.trainings for point in points]
    assert trainings == sorted(trainings)


def test_a_frontier_stands_beside_the_plan_against_models() -> None:
    """What is stated of asks and trainings does not count, and every point is told when it is found."""
    told: list[asks.FrontierPoint] = []
    settings = dataclasses.replace(AGAINST_SERVER, asks=5, trainings=1.0, ask_cost=0.5)
    found = plan_frontier(SMALL, settings, watch=told.append)
    assert tuple(told) == found.points
    assert found.against_models == make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, against="models"))
    assert found.cheapest.cost == min(point.cost for point in found.points)
    assert found.cheapest.plan == make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, ask_cost=0.5))
    with pytest.raises(InputError, match="nothing to hide"):
        plan_frontier(SMALL, dataclasses.replace(AGAINST_SERVER, method="fedavg"))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"asks": 11}, InputError),
        ({"asks": 0}, InputError),
        ({"asks": 2, "trainings": 2.5}, InputError),
        ({"trainings": 0.0}, InputError),
        ({"ask_cost": -1.0}, InputError),
        ({"against": "models", "asks": 3}, InputError),
        ({"against": "serve"}, InputError),
        ({"max_participations": 3}, InputError),
        ({"asks": 1}, InputError),
        ({"trainings": 1e-4}, PrivacyError),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make_plan(SMALL, dataclasses.replace(AGAINST_SERVER, **wrong))  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    "edited",
    [
        {"asks": 4},
        {"asks": None},
        {"min_roster": None},
        {"min_roster": 0.0},
        {"min_roster": 0.4},
        {"sampling": "poisson"},
        {"adjacency": "add-or-remove-one-client"},
        {"num_rounds": 20},
        {"max_participations": 2},
    ],
)
def test_a_rotation_that_says_two_things_is_refused(edited: dict[str, object]) -> None:
    plan = planned(dataclasses.replace(AGAINST_SERVER, asks=5, trainings=2.0))
    with pytest.raises(PrivacyError):
        dataclasses.replace(plan, **edited)  # type: ignore[arg-type]  # by name


def test_more_asks_than_were_paid_for_do_not_load() -> None:
    plan = planned(dataclasses.replace(AGAINST_SERVER, asks=5, trainings=2.0))
    text = plan_to_toml(plan).replace("asks = 5", "asks = 6").replace("asked = 0.5", "asked = 0.6")
    with pytest.raises(PrivacyError, match="more than its budget of 1: at most 5 of 6 asks"):
        plan_from_toml(text)
