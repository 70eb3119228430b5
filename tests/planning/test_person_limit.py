"""A person's clients together stay within a limit."""

import dataclasses

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import METHODS, make_plan
from gdpfed.planning.people import epsilon_of_a_person
from gdpfed.planning.plan import Plan, guaranteed
from gdpfed.planning.plan_file import plan_from_toml, plan_hash, plan_to_toml
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, parse_compact
from gdpfed.privacy.calibrate import noise_multiplier_for

pytestmark = pytest.mark.training

BUDGETS = parse_compact("60@1,90@2,50@6")
PAIRS = PlanSettings(num_rounds=5, participation=0.2, delta=1e-4, clients_per_person=2)
PRIVATE = [name for name, method in METHODS.items() if method.is_private]


def limited(method: str = "gdpfed", limit: float = 3.0, **changes: object) -> Plan:
    return make_plan(BUDGETS, dataclasses.replace(PAIRS, method=method, person_epsilon=limit, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", PRIVATE)
def test_people_stay_within_the_limit(method: str) -> None:
    for limit in (0.8, 3.0):
        plan = limited(method, limit)
        assert plan.epsilon_person is not None
        assert plan.epsilon_person <= limit
        assert all(group.epsilon_release <= min(group.epsilon, limit) for group in plan.groups)
        plan.verify()


def with_noise(plan: Plan, noise: list[float]) -> Plan:
    """The same mechanism with other noise, per group."""
    groups = tuple(
        dataclasses.replace(group, noise_multiplier=each) for group, each in zip(plan.groups, noise, strict=True)
    )
    return dataclasses.replace(plan, groups=groups, person_epsilon=None, epsilon_person=None)


def test_no_more_noise_than_needed() -> None:
    plan = limited()
    free = make_plan(BUDGETS, dataclasses.replace(PAIRS, method="gdpfed"))
    assert plan.groups[0].noise_multiplier == free.groups[0].noise_multiplier
    level = max(group.epsilon_release for group in plan.groups)
    assert level < 2
    higher = [
        noise_multiplier_for(
            epsilon=min(group.epsilon, 1.005 * level),
            delta=group.delta,
            sampling_rate=group.sampling_rate,
            num_rounds=5,
        )
        for group in plan.groups
    ]
    assert (epsilon_of_a_person(guaranteed(with_noise(plan, higher))) or 0) > 3.0
    # A limit that is kept anyway changes nothing but what is stated.
    lax = limited(limit=50.0)
    assert dataclasses.replace(lax, person_epsilon=None) == free


def test_a_level_beats_one_factor() -> None:
    """The oracle: all noise times the least factor that keeps the limit, with the weights as they are."""
    settings = dataclasses.replace(PAIRS, method="gdpfed", weights="inverse-variance")
    free = make_plan(BUDGETS, settings)
    low, high = 1.0, 10.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        noise = [group.noise_multiplier * middle for group in free.groups]
        if (epsilon_of_a_person(with_noise(free, noise)) or 0) <= 3.0:
            high = middle
        else:
            low = middle
    ours = make_plan(BUDGETS, dataclasses.replace(settings, person_epsilon=3.0))
    assert ours.signal_to_noise > free.signal_to_noise / high


def test_listed_people() -> None:
    names = tuple(f"c{number}" for number in range(len(BUDGETS)))
    named = Budgets(epsilons=BUDGETS.epsilons, deltas=np.full(len(BUDGETS), np.nan), clients=names)
    linked = (("c0", "c150"), ("c1", "c2"))
    settings = dataclasses.replace(PAIRS, clients_per_person=1, linked=linked, method="gdpfed", person_epsilon=4.0)
    plan = make_plan(named, settings)
    assert plan.epsilon_person is not None
    assert 3.9 < plan.epsilon_person <= 4.0
    # Who is in one client is a person, too: nobody may lose the 6 that the laxest allow.
    assert max(group.epsilon_release for group in plan.groups) <= 4.0


def test_person_limit_is_kept() -> None:
    """On file it stands, and a plan that does not keep it does not load."""
    plan = limited()
    text = plan_to_toml(plan)
    assert "person_epsilon = 3.0" in text
    assert plan_from_toml(text) == plan
    with pytest.raises(PrivacyError, match=r"more than person_epsilon=2\.9"):
        plan_from_toml(text.replace("person_epsilon = 3.0", "person_epsilon = 2.9"))
    with pytest.raises(PrivacyError, match="more than person_epsilon"):
        limited(noise_multipliers=(5.0, 3.0, 1.5))


def test_without_a_limit_files_are_as_before() -> None:
    plan = make_plan(BUDGETS, dataclasses.replace(PAIRS, method="gdpfed"))
    assert "\nperson_epsilon" not in plan_to_toml(plan)
    assert plan_hash(plan) != plan_hash(dataclasses.replace(plan, person_epsilon=100.0))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="clients_per_person or linked"):
        PlanSettings(person_epsilon=2.0)
    with pytest.raises(InputError, match="person_epsilon"):
        PlanSettings(person_epsilon=-1.0, clients_per_person=2)
    with pytest.raises(InputError, match="fedavg leaves no choice"):
        make_plan(BUDGETS, PlanSettings(method="fedavg", clients_per_person=2, person_epsilon=2.0))
    plan = make_plan(BUDGETS, dataclasses.replace(PAIRS, method="gdpfed"))
    with pytest.raises(InputError, match="with person_epsilon"):
        dataclasses.replace(plan, clients_per_person=1, person_epsilon=2.0)
